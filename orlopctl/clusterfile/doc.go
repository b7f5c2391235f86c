// Package clusterfile holds the description of a whole cluster. `orlopctl cluster export` writes it
// to a file, `orlopctl cluster create -f` builds the cluster of the file on other machines, and
// `orlopctl cluster diff` compares two files.
//
// The file has the machines with their settings, the Cluster document and the Addon documents. It
// has no keys, because a new cluster gets new keys. It has ${NAME} in place of the address of
// machine NAME, so the same file describes clusters on different machines. A secret of the
// operator, for example the password of a registry, is replaced by "(redacted)". Before `cluster
// create`, an operator replaces "(redacted)" by the secret.
//
// The package is pure. It calls no machine and reads no file.
package clusterfile
