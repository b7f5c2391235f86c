// Command conformance has Kubernetes' own end-to-end suite judge a cluster of two emulated machines
// that lead nowhere. docs/conformance.md says how, and what its figures mean.
//
//	main.go      flags, and the order of things
//	programs.go  the suite and the programs of its images, built from modules (suite/go.mod)
//	images.go    the images that the suite uses, under its own names
//	debian.go    what of them comes from Debian packages
//	batches.go   which tests are left, and so many of them at a time
//	junit.go     what the suite says of them
//	report.go    what is kept from run to run, and the form of the file
//
// It does not build the system's image, and changes nothing of Kubernetes.
package main
