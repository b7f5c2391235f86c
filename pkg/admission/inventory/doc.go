// Package inventory implements the protocol by which a machine without a configuration describes
// its hardware to a cluster, and the list of these machines on a control-plane machine
// (docs/decisions/0103-inventory.md).
//
// The machine connects with TLS 1.3 and its own ALPN protocol name, without a client certificate.
// It sends a Request with a signature over the connection, and gets an Answer; then the connection
// ends. The signature proves that the machine has the private key of the request. Every other
// statement of the machine is unproven.
//
// The package only makes decisions and parses messages. It reads no hardware, no clock and no file.
package inventory
