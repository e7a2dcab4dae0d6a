{% extends "proxied.sh" %}
{% block prepare %}
mkdir -p home state
export FLWR_HOME=$PWD/home
{% endblock %}
{% block start %}
while :; do
flower-supernode --superlink 127.0.0.1:{{ forward }} --host 127.0.0.1 --port {{ forward + 1 }} \
  --root-certificates tls.crt --auth-supernode-private-key key \
  --node-config "client-key=\"{{ client }}\" data=\"$PWD/data.npz\" state-dir=\"$PWD/state\"" &
{% include "watch.sh" %}
kill -0 "$proxy" 2>/dev/null || exit 1
wait "$program" && exit 0
# For about a minute after a crash the SuperLink still takes the old node for alive and refuses its key.
sleep 10 &
wait "$!" || :
done
{% endblock %}
