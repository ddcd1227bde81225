#!/bin/bash
# examples/elastic/ssh.sh "host-0 host-1 host-2" plan.json corpus.bin [OPTION ...]
# Starts a keeper on each host, with plan and data at the same path on each. SSH and PORT may be set; where hosts share
# an address, PORT is the first one's and each next one has the next. Hosts read the run's secret from standard input.
HOSTS=$1 PLAN=$2 DATA=$3
shift 3
SECRET=${SHARDWRIGHT_SECRET:-$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')}
SSH=${SSH:-ssh} PORT=${PORT:-29400} STEP=${STEP:-0}
join="" number=0
for host in $HOSTS; do
    join="$join,$host:$((PORT + STEP * number++))"
done
join=${join#,} number=0
for host in $HOSTS; do
    port=$((PORT + STEP * number))
    $SSH "$host" "read -r SHARDWRIGHT_SECRET && export SHARDWRIGHT_SECRET && exec shardwright train $PLAN \
        --data $DATA --elastic --name machine-$number --listen $host:$port --join $join \
        --out ${OUT:-run}/machine-$number $*" <<< "$SECRET" &
    number=$((number + 1))
done
status=0
for job in $(jobs -p); do
    wait "$job" || status=1
done
exit $status
