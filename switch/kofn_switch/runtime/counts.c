// The ports' counters in a file, where other processes read them while the switch runs.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

// Count in a file from now on. The numbers of a file that exists go on, as after a restart of the switch. Return 0 or a negative
// error number.
int core_share_counts(struct core *core, const char *path) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    struct port_counts *shared = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof core->own_counts) == 0)
        shared = mmap(NULL, sizeof core->own_counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int error = errno;
    if (file >= 0) close(file);
    if (shared == MAP_FAILED) return -error;
    core_lock(core);
    core->counts = shared;
    core_unlock(core);
    return 0;
}

void counts_free(struct core *core) {
    if (core->counts != core->own_counts) munmap(core->counts, sizeof core->own_counts);
}
