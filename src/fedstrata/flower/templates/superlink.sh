{% extends "proxied.sh" %}
{% block prepare %}
umask 077
mkdir -p superlink
export FLWR_HOME=$PWD/superlink
# A reply of few bytes can become one of any size. What would take more than half of this machine's memory (KiB) fails,
# and costs that reply alone. Linux alone keeps to it.
if [ -r /proc/meminfo ]; then ulimit -d "$(awk '/^MemTotal/ {print int($2 / 2)}' /proc/meminfo)" || :; fi
# Exactly these nodes are let in. To shut one out, remove its tls.crt and start this script again.
cat nodes/*/tls.crt > {{ proxy }}/nodes.crt
{% endblock %}
{% block start %}
flower-superlink --host 127.0.0.1 --port {{ superlink }} --database superlink/state.db \
  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \
  --ssl-keyfile certificates/server.key --enable-supernode-auth \
  --disable-runtime-dependency-installation &
{% include "watch.sh" %}
wait "$program"
{% endblock %}
