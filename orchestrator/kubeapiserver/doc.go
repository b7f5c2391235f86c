// Package kubeapiserver runs upstream's kube-apiserver inside the process "api": its flags and
// configuration files as data (flags.go, files.go), its start (run.go).
//
// The package builds the server from the exported functions that upstream's app.NewConfig calls.
// The reason is the connection of the server to itself: at every start upstream makes two RSA keys
// for it, which takes a tenth of the processor time of the start, and far more under emulation.
// config.go performs the same steps with an ECDSA key. A test compares the result with upstream's
// and so detects a step that a new version of Kubernetes adds.
//
// The package does not create the cluster's own objects (package bootstrap) and does not start etcd
// (package etcd).
package kubeapiserver
