// pcap files: captures of interfaces, and the outputs of ports that have files instead of interfaces.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

#define MAGIC_MICROSECONDS 0xa1b2c3d4u
#define SNAPLEN 262144  // the most that libpcap reads
#define LINKTYPE_ETHERNET 1

struct file_header {
    uint32_t magic;
    uint16_t major, minor;
    uint32_t zone, accuracy, snaplen, linktype;
};

struct record_header {
    uint32_t seconds, microseconds, captured, length;
};

// Create a file with its header, open for writing. Return a negative error number on failure.
static int create(const char *path) {
    const struct file_header header = {MAGIC_MICROSECONDS, 2, 4, 0, 0, SNAPLEN, LINKTYPE_ETHERNET};
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return -errno;
    errno = 0;
    if (write(file, &header, sizeof header) == sizeof header) return file;
    int error = errno ? errno : ENOSPC;
    close(file);
    return -error;
}

// Remove the part of a record that was written before the error.
static int take_back(int file, ssize_t written) {
    off_t end = lseek(file, -written, SEEK_CUR);
    return end >= 0 && ftruncate(file, end) < 0 ? -errno : -ENOSPC;
}

// Write one packet at once, so that a reader finds it whole while the switch runs. Return 0 or a negative error number.
int pcap_write(int file, const struct iovec *parts, size_t count) {
    struct timespec now;
    struct record_header header;
    struct iovec all[1 + PARTS_MAX] = {{&header, sizeof header}};
    size_t bytes = 0;
    for (size_t i = 0; i < count; bytes += parts[i++].iov_len) all[1 + i] = parts[i];
    clock_gettime(CLOCK_REALTIME, &now);
    header = (struct record_header){
        (uint32_t)now.tv_sec, (uint32_t)(now.tv_nsec / 1000), (uint32_t)bytes, (uint32_t)bytes};
    ssize_t written = writev(file, all, (int)count + 1);
    if (written < 0) return -errno;
    return (size_t)written == bytes + sizeof header ? 0 : take_back(file, written);
}

// Open one port with a file in place of its interface: frames that leave the port go to the file, and frames that enter the
// port come by core_receive. Return 0 or a negative error number.
int core_open_file(struct core *core, uint32_t port, const char *path) {
    int file = create(path);
    if (file < 0) return file;
    core->ports[port].socket = file;
    core->ports[port].is_file = 1;
    return 0;
}

// Write the frames of a port in one direction to a file, until the ports are closed. Return 0 or a negative error
// number.
int core_capture(struct core *core, uint32_t direction, uint32_t port, const char *path) {
    if (!core->captures && !(core->captures = calloc(1, sizeof *core->captures))) return -ENOMEM;
    int file = create(path);
    if (file < 0) return file;
    core->captures->files[direction][port] = file + 1;
    core->captures->errors[direction][port] = 0;
    return 0;
}

// Write a frame. A failure ends the capture, but not the switch.
void captured(struct core *core, enum fault_direction direction, uint32_t port, const struct iovec *parts,
              size_t count) {
    int *file = &core->captures->files[direction][port];
    if (!*file) return;
    int result = pcap_write(*file - 1, parts, count);
    if (result == 0) return;
    core->captures->errors[direction][port] = -result;
    close(*file - 1);
    *file = 0;
}

// Return the error number that ended a capture early, or 0.
int core_capture_error(struct core *core, uint32_t direction, uint32_t port) {
    return core->captures ? core->captures->errors[direction][port % PORTS] : 0;
}

void captures_close(struct core *core) {
    for (int i = 0; core->captures && i < FAULT_DIRECTIONS * PORTS; i++) {
        int *file = &core->captures->files[i / PORTS][i % PORTS];
        if (*file) close(*file - 1);
        *file = 0;
    }
}
