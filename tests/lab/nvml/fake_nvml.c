/* A driver that is not there: libnvidia-ml.so.1 as far as the agent calls it, moved by a text file.
 *
 * FAKE_NVML_STATE names the file when the library is loaded, fakeNvmlUse another one later: threads
 * call in here while others change the environment, which getenv does not survive. The file is read
 * again whenever its mtime or size changes. Lines:
 *     clock SECONDS            a clock of its own; without it the driver's time is CLOCK_REALTIME
 *     gpus N                   how many GPUs the driver counts (8)
 *     init_error CODE          what nvmlInit returns
 *     gpu.3.KEY VALUE          GPU 3
 *     gpu.3/1.KEY VALUE        the second MIG instance of GPU 3
 * KEY is one of the fields below or `gpm.ID`. VALUE `error:CODE` makes that reading fail with CODE.
 * Counters grow as on a real GPU: a GPM sample and the energy counter hold integrals over time, so
 * that two samples give the true mean between them even when values changed meanwhile.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { GPUS = 16, INSTANCES = 8, SLOTS = GPUS * (1 + INSTANCES), GPM_IDS = 128, PIDS = 64 };
enum { WATT_INTEGRAL = 0 };              /* no GPM metric has id 0: its place keeps the energy */

typedef struct { char text[96]; } Text;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned id; int code; double value; const char *names[3]; } Metric;
typedef struct { int slot; double time, total[GPM_IDS]; } Sample;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, supported; } Support;
typedef struct { char seen[GPUS][512]; char registered[GPUS]; } EventSet;
_Static_assert(sizeof(MemoryV2) == 40 && sizeof(MemoryV1) == 24, "memory");
_Static_assert(sizeof(Process) == 24 && sizeof(Pci) == 68 && sizeof(Metric) == 40, "structs");

/* The fields of a GPU, in the order of their names. */
enum { MINOR, UUID, NAME, BUS_ID, MEMORY_TOTAL, MEMORY_USED, MEMORY_RESERVED, UTILIZATION, POWER,
       POWER_LIMIT, ENERGY, TEMPERATURE, CLOCK, REASONS, PROCESSES, GPM, MIG, GPU_INSTANCE,
       COMPUTE_INSTANCE, ERROR, HANDLE_ERROR, DELAY, XID, ECC_CORRECTED, ECC_UNCORRECTED,
       REMAPPED_ROWS, PCIE_WIDTH, PCIE_MAX_WIDTH, FIELDS };
static const char *const NAMES[FIELDS] = {
    "minor", "uuid", "name", "bus_id", "memory_total_mib", "memory_used_mib", "memory_reserved_mib",
    "utilization", "power_mw", "power_limit_mw", "energy_mj", "temperature", "clock", "reasons",
    "processes", "gpm", "mig", "gpu_instance", "compute_instance", "error", "handle_error",
    "delay_ms", "xid", "ecc_corrected", "ecc_uncorrected", "remapped_rows", "pcie_width",
    "pcie_max_width" };

typedef struct Slot {
    char fields[FIELDS][512];
    Text gpm[GPM_IDS];
    double rate[GPM_IDS], total[GPM_IDS];                          /* rates are parsed when they are set */
    char energy_base[512];
} Slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Slot slots[SLOTS];
static int gpus = 8, init_error, live_samples;
static double driver_clock = -1, integrated_until = -1;
static struct stat seen;
static char path[512], seen_path[512], listened_path[512];
static int listeners[GPUS];
static const char *first_reading;

/* FAKE_NVML_FIRST_READING names a file that is made when power is first asked for. */
__attribute__((constructor)) static void look_around(void) {
    const char *state = getenv("FAKE_NVML_STATE");
    if (state) snprintf(path, sizeof path, "%s", state);
    first_reading = getenv("FAKE_NVML_FIRST_READING");
}

void fakeNvmlUse(const char *state) {
    pthread_mutex_lock(&lock);
    snprintf(path, sizeof path, "%s", state);
    pthread_mutex_unlock(&lock);
}

static double seconds(struct timespec t) { return (double)t.tv_sec + (double)t.tv_nsec * 1e-9; }

static double now(void) {
    struct timespec t;
    if (driver_clock >= 0) return driver_clock;
    clock_gettime(CLOCK_REALTIME, &t);
    return seconds(t);
}

static int error_in(const char *value) {
    int code = 0;
    sscanf(value, "error:%d", &code);
    return code;
}

static void integrate(double until) {
    double passed = integrated_until < 0 ? 0 : until - integrated_until;
    if (passed < 0) return;
    for (int s = 0; s < SLOTS; s++) {
        if (!slots[s].fields[UUID][0]) continue;
        for (int id = 0; id < GPM_IDS; id++) slots[s].total[id] += passed * slots[s].rate[id];
    }
    integrated_until = until;
}

static int slot_of(const char *name) {
    int gpu, instance;
    int found = sscanf(name, "%d/%d", &gpu, &instance);
    if (gpu < 0 || gpu >= GPUS) abort();
    return found == 2 ? GPUS + gpu * INSTANCES + instance : gpu;
}

static void set_field(Slot *slot, const char *key, const char *value) {
    int id;
    if (sscanf(key, "gpm.%d", &id) == 1 && id > 0 && id < GPM_IDS) {
        snprintf(slot->gpm[id].text, sizeof(Text), "%.90s", value);
        slot->rate[id] = atof(value);
        return;
    }
    for (int f = 0; f < FIELDS; f++)
        if (!strcmp(NAMES[f], key)) {
            if (f == ENERGY && strcmp(slot->energy_base, value)) {       /* as after a driver reload */
                slot->total[WATT_INTEGRAL] = 0;
                snprintf(slot->energy_base, sizeof slot->energy_base, "%s", value);
            }
            snprintf(slot->fields[f], sizeof slot->fields[f], "%s", value);
            if (f == POWER) slot->rate[WATT_INTEGRAL] = atof(value);
            return;
        }
    fprintf(stderr, "fake driver: no field %s\n", key);
    abort();
}

/* What the new file does not name is gone; integrals stay. */
static void forget(void) {
    for (int s = 0; s < SLOTS; s++) {
        memset(slots[s].fields, 0, sizeof slots[s].fields);
        memset(slots[s].gpm, 0, sizeof slots[s].gpm);
        memset(slots[s].rate, 0, sizeof slots[s].rate);
    }
}

/* Read the state file if it changed. Values count from the moment of the file's mtime. */
static int refreshed(void) {
    char line[700], name[32], key[64], value[512];
    struct stat status;
    if (stat(path, &status)) return 0;
    if (status.st_mtim.tv_sec == seen.st_mtim.tv_sec && status.st_mtim.tv_nsec == seen.st_mtim.tv_nsec
        && status.st_size == seen.st_size && status.st_ino == seen.st_ino) return 1;
    seen = status;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (strcmp(seen_path, path)) integrated_until = -1;          /* another driver, another time */
    snprintf(seen_path, sizeof seen_path, "%s", path);
    if (fscanf(file, "clock %lf ", &driver_clock) != 1) driver_clock = -1;
    integrate(driver_clock >= 0 ? driver_clock : seconds(status.st_mtim));
    forget();
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "gpus %d", &gpus) == 1 || sscanf(line, "init_error %d", &init_error) == 1) continue;
        value[0] = 0;
        if (sscanf(line, "gpu.%31[0-9/].%63s %511[^\n]", name, key, value) >= 2)
            set_field(&slots[slot_of(name)], key, value);
    }
    fclose(file);
    return 1;
}
static void refresh(void) { if (!refreshed()) abort(); }

/* Every call enters here: the delay passes outside the lock, as a wedged call does not hold it. */
static int enter(Slot *slot) {
    pthread_mutex_lock(&lock);
    refresh();
    long delay = atol(slot->fields[DELAY]);
    if (delay) {
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)delay * 1000);
        pthread_mutex_lock(&lock);
    }
    return atoi(slot->fields[ERROR]);
}

static int leave(int code) { pthread_mutex_unlock(&lock); return code; }

static int read_text(Slot *slot, int field, char *into, unsigned length) {
    int code = enter(slot);
    if (!code) code = error_in(slot->fields[field]);
    if (!code && strlen(slot->fields[field]) >= length) code = INSUFFICIENT_SIZE;
    if (!code) strcpy(into, slot->fields[field]);
    return leave(code);
}

static int read_number(Slot *slot, int field, unsigned long long *into) {
    int code = enter(slot);
    if (!code) code = error_in(slot->fields[field]);
    if (!code && !slot->fields[field][0]) code = NOT_SUPPORTED;
    if (!code) *into = strtoull(slot->fields[field], NULL, 0);
    return leave(code);
}

static int read_unsigned(Slot *slot, int field, unsigned *into) {
    unsigned long long number;
    int code = read_number(slot, field, &number);
    if (!code) *into = (unsigned)number;
    return code;
}

static int find(int field, const char *text, Slot **into) {
    pthread_mutex_lock(&lock);
    refresh();
    for (int s = 0; s < SLOTS; s++)
        if (slots[s].fields[field][0] && !strcmp(slots[s].fields[field], text)) {
            *into = &slots[s];
            return leave(atoi(slots[s].fields[HANDLE_ERROR]));
        }
    return leave(NOT_FOUND);
}

/* ---- the library ---- */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    return leave(init_error);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake driver"; }
int nvmlSystemGetDriverVersion(char *into, unsigned length) { snprintf(into, length, "570.00"); return SUCCESS; }
int fakeNvmlLiveSamples(void) { return live_samples; }

/* ---- which devices there are ---- */
int nvmlDeviceGetCount_v2(unsigned *count) {
    pthread_mutex_lock(&lock);
    refresh();
    *count = (unsigned)gpus;
    return leave(SUCCESS);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Slot **into) {
    pthread_mutex_lock(&lock);
    refresh();
    if ((int)index >= gpus) return leave(INVALID_ARGUMENT);
    *into = &slots[index];
    return leave(atoi(slots[index].fields[HANDLE_ERROR]));
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Slot **into) { return find(UUID, uuid, into); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Slot **into) { return find(BUS_ID, bus_id, into); }
int nvmlDeviceGetName(Slot *s, char *into, unsigned n) { return read_text(s, NAME, into, n); }
int nvmlDeviceGetUUID(Slot *s, char *into, unsigned n) { return read_text(s, UUID, into, n); }
int nvmlDeviceGetMinorNumber(Slot *s, unsigned *into) { return read_unsigned(s, MINOR, into); }
int nvmlDeviceGetIndex(Slot *s, unsigned *into) {
    int code = enter(s);
    *into = (unsigned)(s - slots);
    return leave(code);
}
int nvmlDeviceGetPciInfo_v3(Slot *s, Pci *into) {
    memset(into, 0, sizeof *into);
    int code = read_text(s, BUS_ID, into->bus_id, sizeof into->bus_id);
    if (!code) sscanf(into->bus_id, "%x:%x:%x", &into->domain, &into->bus, &into->device);
    return code;
}

/* ---- readings ---- */
int nvmlDeviceGetMemoryInfo_v2(Slot *s, MemoryV2 *into) {
    if (into->version != (2u << 24 | sizeof *into)) return VERSION_MISMATCH;
    int code = enter(s);
    if (!code) code = error_in(s->fields[MEMORY_USED]);
    into->total = strtoull(s->fields[MEMORY_TOTAL], NULL, 0) << 20;
    into->used = strtoull(s->fields[MEMORY_USED], NULL, 0) << 20;
    into->reserved = strtoull(s->fields[MEMORY_RESERVED], NULL, 0) << 20;
    into->free = into->total - into->used - into->reserved;
    return leave(code);
}
int nvmlDeviceGetMemoryInfo(Slot *s, MemoryV1 *into) {
    MemoryV2 memory = { .version = 2u << 24 | sizeof memory };
    int code = nvmlDeviceGetMemoryInfo_v2(s, &memory);
    *into = (MemoryV1){ memory.total, memory.free, memory.used + memory.reserved };
    return code;
}
int nvmlDeviceGetUtilizationRates(Slot *s, Utilization *into) {
    into->memory = 0;
    return read_unsigned(s, UTILIZATION, &into->gpu);
}
int nvmlDeviceGetPowerUsage(Slot *s, unsigned *into) {
    static int asked;
    if (first_reading && !__atomic_test_and_set(&asked, __ATOMIC_SEQ_CST)) {
        FILE *file = fopen(first_reading, "w");
        if (file) fclose(file);
    }
    return read_unsigned(s, POWER, into);
}
int nvmlDeviceGetPowerManagementLimit(Slot *s, unsigned *into) { return read_unsigned(s, POWER_LIMIT, into); }
int nvmlDeviceGetEnforcedPowerLimit(Slot *s, unsigned *into) { return read_unsigned(s, POWER_LIMIT, into); }
int nvmlDeviceGetTemperature(Slot *s, unsigned sensor, unsigned *into) {
    return sensor ? INVALID_ARGUMENT : read_unsigned(s, TEMPERATURE, into);
}
int nvmlDeviceGetClockInfo(Slot *s, unsigned kind, unsigned *into) {
    if (kind != 1 && kind != 2) return INVALID_ARGUMENT;   /* 1: of the SMs, 2: of the memory */
    int code = read_unsigned(s, CLOCK, into);
    if (kind == 2) *into = 2619;
    return code;
}
int nvmlDeviceGetCurrentClocksEventReasons(Slot *s, unsigned long long *into) { return read_number(s, REASONS, into); }
int nvmlDeviceGetTotalEnergyConsumption(Slot *s, unsigned long long *into) {
    int code = read_number(s, ENERGY, into);
    pthread_mutex_lock(&lock);
    integrate(now());
    if (!code) *into += (unsigned long long)s->total[WATT_INTEGRAL];
    return leave(code);
}
int nvmlDeviceGetTotalEccErrors(Slot *s, unsigned uncorrected, unsigned aggregate, unsigned long long *into) {
    return aggregate ? INVALID_ARGUMENT : read_number(s, uncorrected ? ECC_UNCORRECTED : ECC_CORRECTED, into);
}
/* "CORRECTED UNCORRECTED PENDING FAILED" */
int nvmlDeviceGetRemappedRows(Slot *s, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int code = enter(s);
    if (!code && sscanf(s->fields[REMAPPED_ROWS], "%u %u %u %u", corrected, uncorrected, pending, failed) != 4)
        code = NOT_SUPPORTED;
    return leave(code);
}
int nvmlDeviceGetCurrPcieLinkWidth(Slot *s, unsigned *into) { return read_unsigned(s, PCIE_WIDTH, into); }
int nvmlDeviceGetMaxPcieLinkWidth(Slot *s, unsigned *into) { return read_unsigned(s, PCIE_MAX_WIDTH, into); }
int nvmlDeviceGetComputeRunningProcesses_v3(Slot *s, unsigned *count, Process *into) {
    int code = enter(s);
    if (!code) code = error_in(s->fields[PROCESSES]);
    if (code) return leave(code);
    unsigned found = 0;
    char *next = s->fields[PROCESSES], *end;
    for (unsigned long pid; (pid = strtoul(next, &end, 10), end != next); next = end, found++)
        if (found < *count) into[found] = (Process){ (unsigned)pid, 1ull << 30, ~0u, ~0u };
    code = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return leave(code);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Slot *s, unsigned *count, Process *into) {
    (void)s; (void)into;
    *count = 0;
    return SUCCESS;
}

/* ---- MIG ---- */
int nvmlDeviceGetMigMode(Slot *s, unsigned *current, unsigned *pending) {
    int code = read_unsigned(s, MIG, current);
    *pending = *current;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(Slot *s, unsigned *into) { (void)s; *into = INSTANCES; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Slot *s, unsigned index, Slot **into) {
    int code = enter(s);
    if (!code && index >= INSTANCES) code = INVALID_ARGUMENT;
    if (!code) *into = &slots[GPUS + (s - slots) * INSTANCES + index];
    if (!code && !(*into)->fields[UUID][0]) code = NOT_FOUND;
    return leave(code);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Slot *s, Slot **into) {
    if (s - slots < GPUS) return INVALID_ARGUMENT;
    *into = &slots[(s - slots - GPUS) / INSTANCES];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(Slot *s, unsigned *into) { return read_unsigned(s, GPU_INSTANCE, into); }
int nvmlDeviceGetComputeInstanceId(Slot *s, unsigned *into) { return read_unsigned(s, COMPUTE_INSTANCE, into); }

/* ---- GPM ---- */
int nvmlGpmQueryDeviceSupport(Slot *s, Support *into) {
    return into->version != 1 ? VERSION_MISMATCH : read_unsigned(s, GPM, &into->supported);
}
int nvmlGpmSampleAlloc(Sample **into) {
    *into = calloc(1, sizeof **into);
    (*into)->slot = -1;
    __atomic_add_fetch(&live_samples, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
int nvmlGpmSampleFree(Sample *sample) {
    free(sample);
    __atomic_sub_fetch(&live_samples, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
int nvmlGpmSampleGet(Slot *s, Sample *sample) {
    int code = enter(s);
    if (!code) code = error_in(s->fields[GPM]);
    if (!code && !atoi(s->fields[GPM])) code = NOT_SUPPORTED;
    integrate(now());
    if (!code) {
        sample->slot = (int)(s - slots);
        sample->time = integrated_until;
        memcpy(sample->total, s->total, sizeof sample->total);
    }
    return leave(code);
}
int nvmlGpmMigSampleGet(Slot *parent, unsigned gpu_instance, Sample *sample) {
    Slot *instances = &slots[GPUS + (parent - slots) * INSTANCES];
    for (int i = 0; i < INSTANCES; i++)
        if (instances[i].fields[UUID][0] && (unsigned)atoi(instances[i].fields[GPU_INSTANCE]) == gpu_instance)
            return nvmlGpmSampleGet(&instances[i], sample);
    return NOT_FOUND;
}
static void mean(Metric *metric, const Sample *first, const Sample *second) {
    metric->value = NAN;
    if (metric->id == 0 || metric->id >= GPM_IDS || !slots[first->slot].gpm[metric->id].text[0]) {
        metric->code = NOT_SUPPORTED;
        return;
    }
    const char *text = slots[first->slot].gpm[metric->id].text;
    metric->code = error_in(text);
    if (metric->code || !strcmp(text, "blank")) return;
    metric->value = (second->total[metric->id] - first->total[metric->id]) / (second->time - first->time);
}
int nvmlGpmMetricsGet(Metrics *request) {
    if (request->version != 1) return VERSION_MISMATCH;
    const Sample *first = request->first, *second = request->second;
    if (!first || !second || first->slot < 0 || first->slot != second->slot) return INVALID_ARGUMENT;
    if (second->time <= first->time) return INVALID_ARGUMENT;
    int code = enter(&slots[first->slot]);
    for (unsigned i = 0; !code && i < request->count; i++) mean(&request->metrics[i], first, second);
    return leave(code);
}

/* ---- events: an Xid is "NUMBER CODE [GPU_INSTANCE]"; a number not seen before makes it happen ---- */
typedef struct { Slot *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
_Static_assert(sizeof(Event) == 32, "event");

int nvmlEventSetCreate(EventSet **into) { *into = calloc(1, sizeof **into); return SUCCESS; }
int nvmlEventSetFree(EventSet *set) { free(set); return SUCCESS; }
int nvmlDeviceRegisterEvents(Slot *s, unsigned long long types, EventSet *set) {
    int code = enter(s);
    long gpu = s - slots;
    if (!code && (gpu < 0 || gpu >= GPUS || types != 8)) code = INVALID_ARGUMENT;    /* 8: critical Xid */
    if (!code) code = error_in(s->fields[XID]);
    if (!code) {
        strcpy(set->seen[gpu], s->fields[XID]);
        set->registered[gpu] = 1;
        if (strcmp(listened_path, seen_path)) memset(listeners, 0, sizeof listeners);
        strcpy(listened_path, seen_path);
        listeners[gpu]++;
    }
    return leave(code);
}
/* How many sets of events this GPU was registered with since the state file is this one. */
int fakeNvmlListeners(int gpu) { return strcmp(listened_path, seen_path) ? 0 : listeners[gpu]; }
static int next_event(EventSet *set, Event *into) {
    unsigned code, gpu_instance = ~0u;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        const char *xid = slots[gpu].fields[XID];
        if (!set->registered[gpu] || !strcmp(set->seen[gpu], xid)) continue;
        strcpy(set->seen[gpu], xid);
        if (sscanf(xid, "%*u %u %u", &code, &gpu_instance) < 1) continue;
        *into = (Event){ &slots[gpu], 8, code, gpu_instance, ~0u };
        return 1;
    }
    return 0;
}
int nvmlEventSetWait_v2(EventSet *set, Event *into, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += 50) {
        pthread_mutex_lock(&lock);
        int alive = refreshed(), found = alive && next_event(set, into);
        pthread_mutex_unlock(&lock);
        if (!alive) return UNINITIALIZED;                            /* the test is over */
        if (found) return SUCCESS;
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(50000);
    }
}
