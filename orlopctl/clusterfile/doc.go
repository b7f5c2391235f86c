// Package clusterfile holds a cluster as a single object: the file that `orlopctl cluster export`
// writes, that `orlopctl cluster create -f` builds on other machines, and that `orlopctl cluster
// diff` compares.
//
// The file has the machines with their settings, the Cluster document and the Addon documents. It
// has no keys: a new cluster gets new keys. In place of the address of a machine it has ${NAME}, so
// the same file describes clusters on different machines. A secret of the operator, for example the
// password of a registry, is "(redacted)", and an operator replaces it before the creation.
//
// The package is pure. It calls no machine and reads no file.
package clusterfile
