/* Preloaded into a server, makes each fsync and fdatasync take longer by TENURE_SYNC_US microseconds, as on the
 * network disk of a cloud. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int synced(const char *name, int file) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *more = getenv("TENURE_SYNC_US");
    int result = sync(file);
    if (more)
        usleep((useconds_t)atoi(more));
    return result;
}

int fsync(int file) { return synced("fsync", file); }
int fdatasync(int file) { return synced("fdatasync", file); }
