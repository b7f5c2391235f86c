// Package kubeapiserver runs upstream's kube-apiserver inside the process "api": its flags and
// configuration files as data (flags.go, files.go), its start (run.go).
//
// The package builds the server from upstream's exported steps, the same steps as in upstream's
// app.NewConfig, for one reason: at every start upstream makes two RSA keys for the server's
// connection to itself, which takes a tenth of the start's processor time and far more under
// emulation. config.go performs the same steps with an ECDSA key. A test compares the result with
// upstream's and so detects a step that a new version of Kubernetes adds.
//
// The package does not create the cluster's own objects (package bootstrap) and does not start etcd
// (package etcd).
package kubeapiserver
