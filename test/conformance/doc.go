// Command conformance runs Kubernetes' own end-to-end suite against a cluster of two emulated
// machines on a closed network. docs/conformance.md describes the method and the figures.
//
//	main.go      flags, and the order of the steps
//	programs.go  the suite and the programs of its images, built from modules (suite/go.mod)
//	images.go    the images that the suite uses, under its own names
//	debian.go    the parts of the images from Debian packages
//	batches.go   the remaining tests, in batches
//	junit.go     the suite's reports
//	report.go    the results that are retained between runs, and the format of the file
//
// It does not build the system's image, and does not change Kubernetes.
package main
