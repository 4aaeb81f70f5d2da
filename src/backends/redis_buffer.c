/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands as bytes, in buffers that grow and stay, so that a link in use allocates nothing for itself after its first
 * calls. What a buffer held may be a password: it is overwritten before it is freed.
 */
#include <string.h>

#include "backends/redis.h"

bool spile__redis_buffer_reserve(const spile_env *env, spile__redis_buffer *buffer, size_t more) {
  if (buffer->size - buffer->len >= more)
    return true;
  size_t size = buffer->size < 4096 ? 4096 : buffer->size;
  while (size - buffer->len < more)
    size *= 2;
  char *bytes = env->allocate(env->allocate_user, buffer->bytes, size);
  if (bytes == NULL)
    return false;
  buffer->bytes = bytes;
  buffer->size = size;
  return true;
}

void spile__redis_buffer_free(const spile_env *env, spile__redis_buffer *buffer) {
  if (buffer->bytes != NULL) {
    explicit_bzero(buffer->bytes, buffer->size);
    (void)env->allocate(env->allocate_user, buffer->bytes, 0);
  }
  *buffer = (spile__redis_buffer){0};
}

bool spile__redis_command(const spile_env *env, spile__redis_buffer *buffer, int argc, const char **argv,
                          const size_t *argv_len) {
  char *command = NULL;
  /* An int in old releases of hiredis, a long long in new ones. */
  long long len = redisFormatCommandArgv(&command, argc, argv, argv_len);
  if (len < 0)
    return false;
  bool room = spile__redis_buffer_reserve(env, buffer, (size_t)len);
  if (room) {
    memcpy(buffer->bytes + buffer->len, command, (size_t)len);
    buffer->len += (size_t)len;
  }
  /* It may hold a password. */
  explicit_bzero(command, (size_t)len);
  redisFreeCommand(command);
  return room;
}
