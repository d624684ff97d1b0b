/* A clock that can be bent, for one process at a time.
 *
 * The demo rack needs upstream time servers that lie by 50 ms, by 2 s or by a day, while nobody touches the one
 * clock of the machine. Preloaded into a real chronyd (-x, `local stratum 1`), this shifts every way in which that
 * process learns the time of day:
 *
 *   - clock_gettime(CLOCK_REALTIME*), gettimeofday(), time();
 *   - the kernel's own packet time stamps in the control messages of recvmsg()/recvmmsg().
 *
 * The second is why libfaketime will not do: it leaves kernel stamps alone, chronyd accepts them while they are less
 * than a second off, and a lie of 50 ms arrives as 25 ms with a false delay of 50 ms.
 *
 * BENTCLOCK_FILE names a file with "offset_s rate_ppm since_s": the clock shows real + offset + rate * (real - since).
 * BENTCLOCK_LEAP names one with the two leap bits of an NTP packet (RFC 5905: 1 insert, 2 delete, 3 not synchronised);
 * they replace those of every answer that is sent. chronyd itself would announce a leap second only from a time zone
 * database and only on its day.
 * Both are read once, at start: a bend restarts the daemon, so that no clock ever jumps under a running chronyd.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static double offset_s, rate_ppm, since_s;
static int leap_bits = -1; /* -1: as chronyd sends them */
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static ssize_t (*real_recvmsg)(int, struct msghdr *, int);
static int (*real_recvmmsg)(int, struct mmsghdr *, unsigned int, int, struct timespec *);
static ssize_t (*real_sendmsg)(int, const struct msghdr *, int);

static FILE *named_by(const char *variable) {
  const char *path = getenv(variable);
  return path ? fopen(path, "re") : NULL;
}

__attribute__((constructor)) static void begin(void) {
  FILE *file = named_by("BENTCLOCK_LEAP");
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_recvmsg = dlsym(RTLD_NEXT, "recvmsg");
  real_recvmmsg = dlsym(RTLD_NEXT, "recvmmsg");
  real_sendmsg = dlsym(RTLD_NEXT, "sendmsg");
  if (file) {
    if (fscanf(file, "%d", &leap_bits) < 1 || leap_bits < 0 || leap_bits > 3) leap_bits = -1;
    fclose(file);
  }
  file = named_by("BENTCLOCK_FILE");
  if (!file) return;
  if (fscanf(file, "%lf %lf %lf", &offset_s, &rate_ppm, &since_s) < 1) offset_s = 0.0;
  fclose(file);
}

/* Shift one time stamp in place. Split into whole seconds and nanoseconds first: a double holds the seconds of today
 * to a quarter of a microsecond only. */
static void bend(struct timespec *ts) {
  double shift = offset_s;
  long long ns;
  if (rate_ppm != 0.0) shift += rate_ppm * 1e-6 * ((double)ts->tv_sec - since_s + ts->tv_nsec * 1e-9);
  ns = (long long)(shift * 1e9) + ts->tv_nsec;
  ts->tv_sec += ns / 1000000000LL;
  ns %= 1000000000LL;
  if (ns < 0) { ns += 1000000000LL; ts->tv_sec -= 1; }
  ts->tv_nsec = ns;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int rc = real_clock_gettime(id, ts);
  if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) bend(ts);
  return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  struct timespec ts;
  (void)tz;
  if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return -1;
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec ts;
  if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return (time_t)-1;
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}

static void bend_if_set(unsigned char *data) {
  struct timespec ts;
  memcpy(&ts, data, sizeof ts);
  if (ts.tv_sec == 0 && ts.tv_nsec == 0) return; /* "no such stamp" */
  bend(&ts);
  memcpy(data, &ts, sizeof ts);
}

static void bend_stamps(struct msghdr *msg) {
  struct cmsghdr *c;
  for (c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_TIMESTAMPNS) {
      bend_if_set(CMSG_DATA(c));
    } else if (c->cmsg_type == SCM_TIMESTAMPING) { /* software, (unused), raw hardware: the last is another clock */
      bend_if_set(CMSG_DATA(c));
    } else if (c->cmsg_type == SCM_TIMESTAMP) {
      struct timeval tv;
      struct timespec ts;
      memcpy(&tv, CMSG_DATA(c), sizeof tv);
      ts.tv_sec = tv.tv_sec;
      ts.tv_nsec = tv.tv_usec * 1000;
      bend(&ts);
      tv.tv_sec = ts.tv_sec;
      tv.tv_usec = ts.tv_nsec / 1000;
      memcpy(CMSG_DATA(c), &tv, sizeof tv);
    }
  }
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
  ssize_t rc = real_recvmsg(fd, msg, flags);
  if (rc >= 0) bend_stamps(msg);
  return rc;
}

int recvmmsg(int fd, struct mmsghdr *msgs, unsigned int count, int flags, struct timespec *timeout) {
  int i, rc = real_recvmmsg(fd, msgs, count, flags, timeout);
  for (i = 0; i < rc; i++) bend_stamps(&msgs[i].msg_hdr);
  return rc;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags) {
  if (leap_bits >= 0 && msg->msg_iovlen > 0 && msg->msg_iov[0].iov_len >= 48) {
    unsigned char *packet = msg->msg_iov[0].iov_base;
    if ((packet[0] & 7) == 4) packet[0] = (packet[0] & 0x3f) | (leap_bits << 6); /* mode 4: a server's answer */
  }
  return real_sendmsg(fd, msg, flags);
}
