/* Sends a file of prepared commands to a server on 127.0.0.1 as fast as it takes them, reads and drops the replies
   up to the sentinel that ends them, and prints the seconds that took. Usage: limit PORT FILE SENTINEL */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (1 << 20)
#define TIMEOUT_MS 30000

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int file = open(argv[2], O_RDONLY);
    struct stat info;
    if (file < 0 || fstat(file, &info) < 0) die(argv[2]);
    char *out = mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (out == MAP_FAILED) die("mmap");

    int sock = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(sock, (struct sockaddr *)&address, sizeof address) < 0) die("connect");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(sock, F_SETFL, O_NONBLOCK);

    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    /* The last bytes of one read stay before the next, so that a sentinel cut in two is found. */
    size_t keep = strlen(argv[3]), kept = 0;
    char *in = malloc(keep + CHUNK);
    for (off_t sent = 0;;) {
        struct pollfd wait = {.fd = sock, .events = POLLIN | (sent < info.st_size ? POLLOUT : 0)};
        if (poll(&wait, 1, TIMEOUT_MS) <= 0) die("no answer");
        if (wait.revents & POLLOUT) {
            off_t left = info.st_size - sent;
            ssize_t n = send(sock, out + sent, left < CHUNK ? left : CHUNK, 0);
            if (n < 0 && errno != EAGAIN) die("send");
            if (n > 0) sent += n;
        }
        if (wait.revents & (POLLIN | POLLERR | POLLHUP)) {
            ssize_t n = recv(sock, in + kept, CHUNK, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN)) die("recv");
            if (n > 0) {
                size_t have = kept + n;
                if (sent == info.st_size && memmem(in, have, argv[3], keep)) break;
                kept = have < keep ? have : keep;
                memmove(in, in + have - kept, kept);
            }
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", (end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) / 1e9);
    return 0;
}
