// Package kubeapiserver runs upstream's kube-apiserver inside the process "api": its flags and
// configuration files as data (flags.go, files.go), its start (run.go).
//
// The server is put together from upstream's exported steps, the ones that its own app.NewConfig
// takes, for one reason: upstream makes two RSA keys for the server's connection to itself at every
// start, a tenth of the start's processor time and far more under emulation. config.go takes the
// same steps with an ECDSA key. A test compares the result with upstream's, so that a new version
// of Kubernetes that adds a step is noticed.
//
// The package does not make the cluster's own objects (package bootstrap) and does not start etcd
// (package etcd).
package kubeapiserver
