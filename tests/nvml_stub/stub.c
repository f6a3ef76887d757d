/* A stand-in for NVML: two cards whose order is not that of their UUIDs. What they do is read from
   NVML_STUB ("counter", "no_counter", "restart", "lost"); each read of power is one tick. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK 0
#define NOT_SUPPORTED 3
#define GPU_IS_LOST 15
#define NOT_FOUND 6

typedef struct { int index; } card_t;
static card_t cards[2] = {{0}, {1}};
static const char *uuids[2] = {"GPU-bbbb", "GPU-aaaa"};
static const double watts[2] = {300.0, 100.0};
static long ticks[2];

static int mode(const char *name) { const char *m = getenv("NVML_STUB"); return m && !strcmp(m, name); }

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "stub"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, card_t **h) { *h = &cards[i]; return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **h) {
  for (int i = 0; i < 2; i++) if (!strcmp(uuid, uuids[i])) { *h = &cards[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetName(card_t *h, char *out, unsigned n) { snprintf(out, n, "NVIDIA GeForce RTX 4090"); return OK; }
int nvmlDeviceGetUUID(card_t *h, char *out, unsigned n) { snprintf(out, n, "%s", uuids[h->index]); return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "1.2.3"); return OK; }
int nvmlDeviceGetEnforcedPowerLimit(card_t *h, unsigned *mw) { *mw = 450000; return OK; }
int nvmlDeviceGetPowerUsage(card_t *h, unsigned *mw) {
  if (mode("lost") && h->index == 0 && ticks[0] >= 5) return GPU_IS_LOST;
  ticks[h->index]++;
  *mw = (unsigned)(watts[h->index] * 1000);
  return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(card_t *h, unsigned long long *mj) {
  if (mode("no_counter")) return NOT_SUPPORTED;
  long t = ticks[h->index];
  /* At 10 samples a second each tick is a tenth of a second of the card's power. */
  double joules = 900000.0 + t * watts[h->index] / 10.0;
  if (mode("restart") && t >= 5) joules = (t - 5) * watts[h->index] / 10.0;
  *mj = (unsigned long long)(joules * 1000);
  return OK;
}
