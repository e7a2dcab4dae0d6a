# Makes the keys of a node, by which the SuperLink knows it, and its certificate, which proxies show each other.
set -e
ssh-keygen -q -t ecdsa -b 384 -N "" -C key -f key
# The name is random: a proxy sends the names of all that it lets in to whoever connects.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -keyout tls.key -out tls.crt -days 365 \
  -subj "/CN=$(openssl rand -hex 8)" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
  -addext basicConstraints=critical,CA:FALSE
