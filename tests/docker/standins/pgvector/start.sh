#!/bin/sh
# Make the cluster at the first start, then run what Compose says: `postgres -c …`.
set -eu
export PGDATA=/var/lib/postgresql/18/docker
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    password=$(mktemp)
    printf '%s' "$POSTGRES_PASSWORD" > "$password"
    initdb --username="$POSTGRES_USER" --pwfile="$password" --auth=scram-sha-256 --encoding=utf8 > /dev/null
    rm "$password"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    printf 'CREATE DATABASE %s;\n' "$POSTGRES_DB" | postgres --single postgres > /dev/null
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
