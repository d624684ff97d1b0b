/* The state files: reading, locking, replacing. See state.h for what they mean. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIR_IDENTITY "/var/lib/nvml-emulator"
#define DIR_VOLATILE "/run/nvml-emulator"

typedef struct {
    char *key;
    char *value;
} pair;

typedef struct {
    pair *pairs; /* sorted by key */
    size_t count;
    bool present;
    struct stat seen;
} store;

static store files[EMU_FILES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int clients_fd = -1;
static int attach_count;

/* What de-initialisation of a GPU forgets (NVIDIA's data persistence page): SW power cap, compute mode, application and
 * locked clocks, volatile ECC counts. */
static const char *const lifecycle_keys[] = {
    "power_limit_mw",
    "compute_mode",
    "ecc_volatile_corrected",
    "ecc_volatile_uncorrected",
    "ecc_volatile_corrected_sram",
    "ecc_volatile_uncorrected_sram",
    "app_clock_graphics",
    "app_clock_mem",
    "locked_clock_graphics_min",
    "locked_clock_graphics_max",
    "locked_clock_mem_min",
    "locked_clock_mem_max",
};
#define LIFECYCLE_COUNT (sizeof(lifecycle_keys) / sizeof(lifecycle_keys[0]))

void emu_lock(void) { pthread_mutex_lock(&mutex); }
void emu_unlock(void) { pthread_mutex_unlock(&mutex); }

/* The prefix is for tests. secure_getenv: a set-uid program must not be led to another state by its caller. */
static void path_of(char *out, size_t size, const char *dir, const char *name)
{
    const char *root = secure_getenv("NVML_EMULATOR_ROOT");
    snprintf(out, size, "%s%s/%s", root ? root : "", dir, name);
}

static void file_path(emu_file file, char *out, size_t size)
{
    if (file == EMU_IDENTITY)
        path_of(out, size, DIR_IDENTITY, "identity");
    else
        path_of(out, size, DIR_VOLATILE, "volatile");
}

/* ---- one store ---- */

static int by_key(const void *a, const void *b) { return strcmp(((const pair *)a)->key, ((const pair *)b)->key); }

static void clear(store *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->pairs[i].key);
        free(s->pairs[i].value);
    }
    free(s->pairs);
    memset(s, 0, sizeof(*s));
}

static pair *find(const store *s, const char *key)
{
    pair wanted = {(char *)key, NULL};
    return s->count ? bsearch(&wanted, s->pairs, s->count, sizeof(pair), by_key) : NULL;
}

static void append(store *s, const char *key, const char *value)
{
    if (s->count % 64 == 0)
        s->pairs = realloc(s->pairs, (s->count + 64) * sizeof(pair));
    s->pairs[s->count].key = strdup(key);
    s->pairs[s->count].value = strdup(value);
    s->count++;
}

static void put(store *s, const char *key, const char *value)
{
    pair *old = find(s, key);
    if (old && value) {
        free(old->value);
        old->value = strdup(value);
    } else if (old) {
        free(old->key);
        free(old->value);
        memmove(old, old + 1, (size_t)(s->pairs + s->count - old - 1) * sizeof(pair));
        s->count--;
    } else if (value) {
        append(s, key, value);
        qsort(s->pairs, s->count, sizeof(pair), by_key);
    }
}

static void parse(store *s, char *text)
{
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *equals = strchr(line, '=');
        if (*line == '#' || !equals || equals == line)
            continue;
        *equals = '\0';
        append(s, line, equals + 1);
    }
    if (s->count)
        qsort(s->pairs, s->count, sizeof(pair), by_key);
}

static void load(emu_file file)
{
    char path[512];
    store *s = &files[file];
    clear(s);
    file_path(file, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &s->seen) == 0) {
        size_t size = (size_t)s->seen.st_size, got = 0;
        char *text = malloc(size + 1);
        for (ssize_t n; text && got < size && (n = read(fd, text + got, size - got)) > 0;)
            got += (size_t)n;
        if (text) {
            text[got] = '\0';
            parse(s, text);
            s->present = true;
        }
        free(text);
    }
    close(fd);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void refresh_one(emu_file file)
{
    char path[512];
    struct stat now;
    file_path(file, path, sizeof(path));
    if (stat(path, &now) != 0)
        clear(&files[file]);
    else if (!files[file].present || !same_file(&now, &files[file].seen))
        load(file);
}

bool emu_refresh(void)
{
    refresh_one(EMU_IDENTITY);
    refresh_one(EMU_VOLATILE);
    return files[EMU_IDENTITY].present && files[EMU_VOLATILE].present;
}

/* ---- clients ---- */

static long long epoch(void)
{
    char text[32] = "";
    if (clients_fd < 0 || pread(clients_fd, text, sizeof(text) - 1, 0) <= 0)
        return 0;
    return atoll(text);
}

nvmlReturn_t emu_attach(void)
{
    if (attach_count > 0) {
        attach_count++;
        return NVML_SUCCESS;
    }
    char path[512];
    path_of(path, sizeof(path), DIR_VOLATILE, "clients");
    /* Made by the emulator's unit with mode 0666: any user may be the one who finds that nobody was there. */
    clients_fd = open(path, O_RDWR | O_CLOEXEC);
    if (clients_fd < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    if (flock(clients_fd, LOCK_EX | LOCK_NB) == 0) {
        char text[32];
        int length = snprintf(text, sizeof(text), "%lld\n", epoch() + 1);
        if (pwrite(clients_fd, text, (size_t)length, 0) != length)
            fprintf(stderr, "nvml-emulator: cannot write %s: %s\n", path, strerror(errno));
    }
    /* Going from exclusive to shared is not atomic: another client may raise the epoch once more in between, which
     * changes nothing, for this process has stored nothing yet. */
    while (flock(clients_fd, LOCK_SH) != 0 && errno == EINTR)
        ;
    attach_count = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t emu_detach(void)
{
    if (attach_count == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (--attach_count == 0) {
        close(clients_fd);
        clients_fd = -1;
    }
    return NVML_SUCCESS;
}

bool emu_attached(void) { return attach_count > 0; }

/* Trying for the lock alone lets go of our share for a moment, in which those who keep us from it hold theirs. */
bool emu_alone(void)
{
    bool alone = flock(clients_fd, LOCK_EX | LOCK_NB) == 0;
    while (flock(clients_fd, LOCK_SH) != 0 && errno == EINTR)
        ;
    return alone;
}

/* ---- reading ---- */

const char *emu_get(const char *key)
{
    pair *p = find(&files[EMU_VOLATILE], key);
    if (!p)
        p = find(&files[EMU_IDENTITY], key);
    return p ? p->value : NULL;
}

const char *emu_gpu(int gpu, const char *key)
{
    char full[128];
    snprintf(full, sizeof(full), "gpu.%d.%s", gpu, key);
    const char *value = emu_get(full);
    if (!value) {
        snprintf(full, sizeof(full), "gpu.*.%s", key);
        value = emu_get(full);
    }
    return value;
}

double emu_number(const char *text, double fallback)
{
    double base, amplitude, period, phase;
    if (!text || !*text)
        return fallback;
    if (sscanf(text, "sine:%lf,%lf,%lf,%lf", &base, &amplitude, &period, &phase) == 4 && period > 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now); /* wall time, so that a test can compute the same value */
        double t = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
        return base + amplitude * sin(2 * M_PI * fmod(t, period) / period + phase);
    }
    if (strncmp(text, "0x", 2) == 0)
        return (double)strtoull(text, NULL, 16);
    return strtod(text, NULL);
}

static long long to_int(const char *text, long long fallback)
{
    return text && *text ? llround(emu_number(text, 0)) : fallback;
}

long long emu_gpu_int(int gpu, const char *key, long long fallback) { return to_int(emu_gpu(gpu, key), fallback); }
long long emu_int(const char *key, long long fallback) { return to_int(emu_get(key), fallback); }

bool emu_persistence(int gpu) { return emu_gpu_int(gpu, "persistence_mode", 0) != 0; }

static bool life_valid(int gpu) { return emu_persistence(gpu) || emu_gpu_int(gpu, "epoch", -1) == epoch(); }

const char *emu_life(int gpu, const char *key) { return life_valid(gpu) ? emu_gpu(gpu, key) : NULL; }
long long emu_life_int(int gpu, const char *key, long long fallback) { return to_int(emu_life(gpu, key), fallback); }

int emu_gpu_count(void)
{
    long long count = emu_int("gpu_count", 0);
    return count < 0 ? 0 : count > EMU_MAX_GPUS ? EMU_MAX_GPUS : (int)count;
}

/* nvmlDeviceGetCount_v2 -> nvmlDeviceGetCount; the two other spellings of nvmlInit are one function to whoever injects
 * a fault. */
static void base_name(const char *function, char *out, size_t size)
{
    snprintf(out, size, "%s", strcmp(function, "nvmlInitWithFlags") == 0 ? "nvmlInit" : function);
    char *tail = strrchr(out, '_');
    if (tail && tail[1] == 'v' && tail[2] >= '0' && tail[2] <= '9' && !tail[3])
        *tail = '\0';
}

const char *emu_per_function(const char *prefix, const char *function, int gpu)
{
    char base[96], key[128];
    base_name(function, base, sizeof(base));
    const char *names[] = {function, base, "*"};
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof(key), "%s.%s", prefix, names[i]);
        const char *value = gpu >= 0 ? emu_gpu(gpu, key) : emu_get(key);
        if (value)
            return value;
    }
    return NULL;
}

/* ---- writing ---- */

static int lock_file(emu_file file)
{
    char path[520];
    file_path(file, path, sizeof(path) - 8);
    strcat(path, ".lock");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    return fd;
}

static bool write_file(emu_file file)
{
    char path[512], temporary[560];
    store *s = &files[file];
    file_path(file, path, sizeof(path));
    snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    FILE *out = fopen(temporary, "we");
    if (!out)
        return false;
    fchmod(fileno(out), 0644);
    for (size_t i = 0; i < s->count; i++)
        fprintf(out, "%s=%s\n", s->pairs[i].key, s->pairs[i].value);
    bool ok = !ferror(out);
    ok = fclose(out) == 0 && ok;
    ok = ok && rename(temporary, path) == 0;
    if (!ok)
        unlink(temporary);
    return ok && stat(path, &s->seen) == 0;
}

bool emu_store(emu_file file, const emu_change *changes, int count)
{
    int fd = lock_file(file);
    if (fd < 0)
        return false;
    load(file);
    for (int i = 0; i < count; i++)
        put(&files[file], changes[i].key, changes[i].value);
    bool ok = write_file(file);
    if (!ok)
        load(file);
    close(fd);
    return ok;
}

bool emu_swap(emu_file file, const char *key, const char *seen, const char *value)
{
    int fd = lock_file(file);
    if (fd < 0)
        return false;
    load(file);
    pair *now = find(&files[file], key);
    bool same = strcmp(now ? now->value : "", seen) == 0;
    if (same) {
        put(&files[file], key, *value ? value : NULL);
        same = write_file(file);
        if (!same)
            load(file);
    }
    close(fd);
    return same;
}

/* Under the lock: drop stale lifecycle values, then apply `value` (NULL deletes) and stamp the epoch. */
static bool change_life(int gpu, const char *key, const char *value)
{
    char full[128], stamp[32];
    int fd = lock_file(EMU_VOLATILE);
    if (fd < 0)
        return false;
    load(EMU_VOLATILE);
    store *s = &files[EMU_VOLATILE];
    if (!life_valid(gpu))
        for (size_t i = 0; i < LIFECYCLE_COUNT; i++) {
            snprintf(full, sizeof(full), "gpu.%d.%s", gpu, lifecycle_keys[i]);
            put(s, full, NULL);
        }
    snprintf(full, sizeof(full), "gpu.%d.%s", gpu, key);
    put(s, full, value);
    snprintf(full, sizeof(full), "gpu.%d.epoch", gpu);
    snprintf(stamp, sizeof(stamp), "%lld", epoch());
    put(s, full, stamp);
    bool ok = write_file(EMU_VOLATILE);
    if (!ok)
        load(EMU_VOLATILE);
    close(fd);
    return ok;
}

bool emu_store_life(int gpu, const char *key, long long value)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", value);
    return change_life(gpu, key, text);
}

bool emu_forget_life(int gpu, const char *key) { return change_life(gpu, key, NULL); }
