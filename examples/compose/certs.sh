#!/bin/sh
# Makes the example's certificates in the folder $1, once, and then waits: sh certs.sh /certs
# The authority's key does not leave this folder; a real fleet has an authority of its own.
set -eu
cd "$1"

leaf() { # name, subject alternative name
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
    printf 'subjectAltName=%s\n' "$2" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$1.ext" \
        -out "$1.crt"
    rm "$1.csr" "$1.ext"
}

if [ ! -f done ]; then
    umask 077
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    openssl req -x509 -new -key ca.key -subj /CN=headrace-compose -days 3650 -out ca.crt
    leaf control-plane DNS:control-plane
    for region in us-east eu-west ap-south; do
        leaf "frontend-$region" "URI:spiffe://compose/frontend/$region"
        leaf "engine-$region-gpu" "URI:spiffe://compose/engine/$region-gpu"
    done
    touch done
fi
trap 'exit 0' TERM INT
sleep infinity &
wait $!
