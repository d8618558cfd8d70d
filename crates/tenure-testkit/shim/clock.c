/* Gives a server a wall clock of its own, which a test moves and stops. Preloaded into redis-server; see src/servers/clock.rs.
 *
 * Redis and Valkey read the wall clock by gettimeofday and time only, and time their event loop by CLOCK_MONOTONIC, which stays
 * as it is. Valkey 9 reads the wall clock once a millisecond and adds what a counter of cycles says, if the processor has one; a
 * server that is told nothing of the processor does without.
 *
 * No clock here looks a symbol up or allocates: jemalloc reads one while it starts, and a shim that allocates hangs there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The test writes a whole setting into a free slot and then one byte, `current`: no reader ever sees half of a change. */
struct setting {
    int64_t offset_us; /* what is added to the real time */
    int64_t frozen_us; /* the time, if not zero */
};
struct dial {
    volatile uint8_t current;
    struct setting settings[256];
};

static const struct dial *dial;

__attribute__((constructor)) static void start(void) {
    int file = open(getenv("TENURE_CLOCK"), O_RDONLY);
    void *map = mmap(NULL, sizeof *dial, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) _exit(70);
    close(file);
    dial = map;
}

static int64_t now_us(void) {
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t real_us = real.tv_sec * INT64_C(1000000) + real.tv_nsec / 1000;
    if (!dial) return real_us;
    const struct setting *setting = &dial->settings[dial->current];
    return setting->frozen_us ? setting->frozen_us : real_us + setting->offset_us;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    if (zone) *(struct timezone *)zone = (struct timezone){0, 0};
    int64_t now = now_us();
    time->tv_sec = now / 1000000;
    time->tv_usec = now % 1000000;
    return 0;
}

time_t time(time_t *out) {
    time_t now = now_us() / 1000000;
    if (out) *out = now;
    return now;
}

static FILE *open_file(const char *symbol, const char *path, const char *mode) {
    if (!strcmp(path, "/proc/cpuinfo")) return errno = ENOENT, NULL;
    FILE *(*open)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, symbol);
    return open(path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) { return open_file("fopen", path, mode); }

FILE *fopen64(const char *restrict path, const char *restrict mode) { return open_file("fopen64", path, mode); }
