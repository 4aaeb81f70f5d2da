/* SPDX-License-Identifier: Apache-2.0 */
#include "run_command.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { ARGS_MAX = 64 };

static char directory[64];

const char *run_directory(void) {
  if (directory[0] == '\0') {
    (void)snprintf(directory, sizeof(directory), "/tmp/spile-cli-XXXXXX");
    cr_assert(mkdtemp(directory) != NULL, "mkdtemp: %s", strerror(errno));
  }
  return directory;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk) {
  (void)status;
  (void)kind;
  (void)walk;
  return remove(path);
}

void run_directory_remove(void) {
  if (directory[0] != '\0')
    (void)nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  directory[0] = '\0';
}

/* In the child: becomes the command, or ends with a status that no test expects. */
static _Noreturn void child_become(const run_options *options, int in, int out, int err) {
  const char *command = getenv("SPILE_COMMAND");
  bool ready = command != NULL && dup2(in, STDIN_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0;
  if (options->output_path != NULL)
    out = open(options->output_path, O_WRONLY);
  else if (options->output_fd > 0)
    out = options->output_fd;
  if (options->output_closed)
    (void)close(STDOUT_FILENO);
  else
    ready = ready && dup2(out, STDOUT_FILENO) >= 0;
  ready = ready && unsetenv("SPILE_STORE") == 0 && unsetenv("XDG_STATE_HOME") == 0;
  ready = ready && setenv("HOME", directory, 1) == 0;
  for (size_t i = 0; options->env != NULL && options->env[i] != NULL; i++)
    ready = ready && putenv((char *)(uintptr_t)options->env[i]) == 0;
  const char *args[ARGS_MAX] = {"spile"};
  for (size_t i = 0; options->args[i] != NULL && i + 2 < ARGS_MAX; i++)
    args[i + 1] = options->args[i];
  (void)signal(SIGPIPE, SIG_DFL);
  if (ready)
    (void)execv(command, (char *const *)(uintptr_t)args);
  _exit(99);
}

static int status_of(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) < 0)
    cr_assert(EINTR == errno, "waitpid: %s", strerror(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static char *read_all(FILE *file, size_t *len) {
  cr_assert(fseek(file, 0, SEEK_END) == 0);
  long size = ftell(file);
  cr_assert(size >= 0);
  rewind(file);
  char *text = malloc((size_t)size + 1);
  cr_assert(text != NULL);
  *len = fread(text, 1, (size_t)size, file);
  text[*len] = '\0';
  (void)fclose(file);
  return text;
}

void run_command(run_result *out, const run_options *options) {
  (void)run_directory();
  /* Files, not pipes: nobody has to read while the other writes. */
  FILE *files[3];
  for (size_t i = 0; i < 3; i++) {
    files[i] = tmpfile();
    cr_assert(files[i] != NULL, "tmpfile: %s", strerror(errno));
  }
  if (options->input != NULL)
    cr_assert(fputs(options->input, files[0]) >= 0);
  cr_assert(fflush(files[0]) == 0);
  rewind(files[0]);
  pid_t pid = fork();
  cr_assert(pid >= 0, "fork: %s", strerror(errno));
  if (pid == 0)
    child_become(options, fileno(files[0]), fileno(files[1]), fileno(files[2]));
  out->status = status_of(pid);
  cr_assert(out->status != 99, "the command could not be started; SPILE_COMMAND must be its path");
  (void)fclose(files[0]);
  size_t err_len;
  out->out = read_all(files[1], &out->out_len);
  out->err = read_all(files[2], &err_len);
}

void run_result_finish(run_result *result) {
  free(result->out);
  free(result->err);
}

void run_start(running_command *out, const run_options *options) {
  (void)run_directory();
  int in[2];
  int result[2];
  cr_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(result, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
  out->pid = fork();
  cr_assert(out->pid >= 0, "fork: %s", strerror(errno));
  if (out->pid == 0)
    child_become(options, in[0], result[1], STDERR_FILENO);
  (void)close(in[0]);
  (void)close(result[1]);
  out->input = in[1];
  out->output = result[0];
}

int run_wait(running_command *running) {
  int status = status_of(running->pid);
  cr_assert(status != 99, "the command could not be started; SPILE_COMMAND must be its path");
  if (running->input >= 0)
    (void)close(running->input);
  if (running->output >= 0)
    (void)close(running->output);
  return status;
}
