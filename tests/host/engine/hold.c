/* Holds the core's lock, like a caller that is interrupted within a call. */
#include "engine.c"

void engine_hold(struct engine *engine, double until_s) {
    pthread_mutex_lock(&engine->lock);
    while (clock_s() < until_s)
        usleep(1000);
    pthread_mutex_unlock(&engine->lock);
}
