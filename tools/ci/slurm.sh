#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Slurm: sbatch tools/ci/slurm.sh, in the tree. The job's exit status is that of the test command.
#SBATCH --job-name=cairn-check
#SBATCH --gres=gpu:h100:1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --output=cairn-check-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export NOSETUP=${NOSETUP:-1} # nodes are rarely where one installs packages: tools/setup.sh names what is missing
make -j"$SLURM_CPUS_PER_TASK" all
build/cairn doctor --require-gpu
exec .ci/run
