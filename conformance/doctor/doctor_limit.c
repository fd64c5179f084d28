// SPDX-License-Identifier: Apache-2.0
/* doctor_limit - limits of this process and machine that commands may reach */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "conformance/doctor/doctor_find.h"

#define MIB		(1024.0 * 1024)
#define MEMLOCK_MIB	64	/* as rdma/card/card.h */
#define SHM_MIB		256	/* containers get 64 MiB by default */
#define OPEN_FILES	4608	/* the default of serve's --max-connections, its own files, and some room */

static void look_memlock(struct doctor_findings *all)
{
	static const char costs[] = "an RDMA card cannot register memory",
			  type[] = "ulimit -l unlimited; for a service: LimitMEMLOCK=infinity";
	struct rlimit l;

	if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &l) || l.rlim_cur == RLIM_INFINITY)
		doctor_add(all, "memlock", DOCTOR_OK, NULL, NULL, "not limited");
	else
		doctor_add(all, "memlock", (double)l.rlim_cur < MEMLOCK_MIB * MIB ? DOCTOR_LOW : DOCTOR_OK,
			   costs, type, "%.0f MiB may be locked", (double)l.rlim_cur / MIB);
}

static void look_shm(struct doctor_findings *all)
{
	static const char costs[] = "NCCL keeps its buffers there and may fail between GPUs",
			  type[] = "mount -o remount,size=1G /dev/shm; in a container: docker run "
				   "--shm-size=1g";
	struct statvfs s;
	double mib;

	if (statvfs("/dev/shm", &s)) {
		doctor_add(all, "/dev/shm", DOCTOR_MISSING, costs, type, "%s", strerror(errno));
		return;
	}
	mib = (double)s.f_blocks * (double)s.f_frsize / MIB;
	doctor_add(all, "/dev/shm", mib < SHM_MIB ? DOCTOR_LOW : DOCTOR_OK, costs, type,
		   "%.0f MiB, %.0f free", mib, (double)s.f_bavail * (double)s.f_frsize / MIB);
}

static void look_files(struct doctor_findings *all)
{
	static const char costs[] = "cairn serve takes fewer connections at once than its 4096",
			  type[] = "ulimit -n 8192; for a service: LimitNOFILE=8192";
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l))
		return;
	/* serve raises the soft limit itself */
	doctor_add(all, "open files", l.rlim_max < OPEN_FILES ? DOCTOR_LOW : DOCTOR_OK, costs, type,
		   "%llu now, at most %llu", (unsigned long long)l.rlim_cur, (unsigned long long)l.rlim_max);
}

void doctor_look_limits(struct doctor_findings *all)
{
	look_memlock(all);
	look_shm(all);
	look_files(all);
}
