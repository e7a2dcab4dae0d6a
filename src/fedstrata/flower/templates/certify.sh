# Makes an authority and the certificate of a server in this folder.
# $1 is the name or address of the server, $2 says which of the two: DNS or IP.
set -e
kind="-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"
openssl req -x509 $kind -keyout ca.key -out ca.crt -days 365 -subj "/CN=test federation"
openssl req $kind -keyout server.key -out server.csr -subj "/CN=$1"
echo "subjectAltName=DNS:localhost,IP:127.0.0.1,$2:$1" > names
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 365 -extfile names
rm server.csr names
