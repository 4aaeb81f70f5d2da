/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of Prometheus' text format that is stricter than Prometheus: what it accepts, everybody accepts.
 *
 * Families come one after the other, each with HELP, TYPE and all its samples; names, labels, escapes and numbers are
 * as the format says, no sample comes twice, label values are UTF-8, histograms count up to their +Inf, which is their
 * count, and the text ends with a line end.
 */
#ifndef TESTS_PROMETHEUS_TEXT_H
#define TESTS_PROMETHEUS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* @return NULL, or what is wrong, in a buffer that the next call writes anew */
const char *prometheus_fault(const char *text);

/* The value of the sample that is written like this before its value, such as `a_total{b="c"}`; −1: there is none. */
double prometheus_value(const char *text, const char *sample);

#endif
