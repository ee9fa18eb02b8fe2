#!/bin/sh
# As the official image starts: options alone are the server's, and root becomes redis.
set -e
if [ "${1#-}" != "$1" ]; then set -- redis-server "$@"; fi
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  find . \! -user redis -exec chown redis '{}' +
  exec setpriv --reuid redis --regid redis --clear-groups "$0" "$@"
fi
exec "$@"
