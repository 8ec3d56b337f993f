/* Sums of packets' values, lane by lane; a lane is a big-endian number, and its sum wraps around. */
#pragma once
#include "header.h"

/* Add `size` bytes of values in lanes of this code, which must not be KOFN_VOTES. */
void lanes_add(int32_t lanes, uint8_t *sum, const uint8_t *values, int32_t size);

/* -- votes: one bit per element; plane p has bit p of all counts, one plane after another */

/* Return the bytes of votes among `size` bytes of values. */
int32_t votes_bytes(int32_t size);
/* Return the planes of counts up to `most`. */
int32_t votes_planes(int32_t most);
/* Add `size` bytes of votes. */
void votes_add(uint8_t *planes, const uint8_t *values, int32_t size, int32_t count);
