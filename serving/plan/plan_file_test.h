/* SPDX-License-Identifier: Apache-2.0 */
/* plan_file_test - a plan file in C strings, with ' for " (json_test.h) */
#ifndef CAIRN_PLAN_FILE_TEST_H
#define CAIRN_PLAN_FILE_TEST_H

#include "serving/base/json_test.h"
#include "serving/plan/plan_file.h"

static const char plan_text[] =
	"{'v': 2, 'gpu': 'G', 'impl': 'none', 'kernels': '0123456789abcdef', 'shape': '4x64-0a',"
	" 'ranks': 1, 'sms': 132, 'entries': ["
	" {'rows': 1024, 'decode_eighths': 3, 'context': 1024, 'cuts': [384], 'decode': [300, 84],"
	"  'parts': ["
	"   {'op': 'qkv', 'nano': 0, 'start': 0.0, 'r': 1.0, 'how': 'alone', 'sms': 132},"
	"   {'op': 'attn', 'nano': 0, 'start': 0.25, 'r': 0.5, 'how': 'queue', 'sms': 64},"
	"   {'op': 'qkv', 'nano': 1, 'start': 0.25, 'r': 0.5, 'how': 'queue', 'sms': 68},"
	"   {'op': 'attn', 'nano': 1, 'start': 1.25, 'r': 1.0, 'how': 'alone', 'sms': 132}],"
	"  'sequential_ms': 33.0, 'predicted_ms': 30.0, 'gap': 0.01,"
	"  'measured_sequential_ms': 33.5, 'measured_ms': 30.5},"
	" {'rows': 1024, 'decode_eighths': 6, 'context': 1024, 'cuts': [512], 'decode': [400, 368],"
	"  'parts': ["
	"   {'op': 'qkv', 'nano': 0, 'start': 0, 'r': 1, 'how': 'alone', 'sms': 132}],"
	"  'sequential_ms': 40.0, 'predicted_ms': 37.0, 'gap': null,"
	"  'measured_sequential_ms': 40.0, 'measured_ms': 39.5},"
	" {'rows': 1024, 'decode_eighths': 3, 'context': 4096, 'cuts': [512], 'decode': [192, 192],"
	"  'parts': ["
	"   {'op': 'qkv', 'nano': 0, 'start': 0, 'r': 1, 'how': 'alone', 'sms': 132}],"
	"  'sequential_ms': 50.0, 'predicted_ms': 47.0, 'gap': 0.0,"
	"  'measured_sequential_ms': 50.0, 'measured_ms': 45.0},"
	" {'rows': 2048, 'decode_eighths': 3, 'context': 1024, 'cuts': [512, 1024],"
	"  'decode': [256, 256, 256], 'parts': ["
	"   {'op': 'qkv', 'nano': 0, 'start': 0, 'r': 1, 'how': 'alone', 'sms': 132}],"
	"  'sequential_ms': 66.0, 'predicted_ms': 58.0, 'gap': 0.0,"
	"  'measured_sequential_ms': 66.0, 'measured_ms': 58.0}]}";

static const struct cairn_plan_file_for plan_here = { "G", "none", "0123456789abcdef", "4x64-0a", 1, true };

#endif
