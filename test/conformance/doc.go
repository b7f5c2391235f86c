// Command conformance runs the end-to-end test suite of Kubernetes against a cluster of two
// emulated machines in a closed network. docs/conformance.md describes the method and the figures.
//
//	main.go      flags, and the order of the steps
//	programs.go  builds the suite and the programs in its images, from modules (suite/go.mod)
//	images.go    makes the images that the suite uses, with the names that the suite expects
//	debian.go    the parts of the images that come from Debian packages
//	batches.go   runs the remaining tests, in batches
//	junit.go     reads and writes JUnit reports
//	report.go    the results that are retained between runs, and the format of the file
//
// The command does not build the image of the system, and does not change Kubernetes.
package main
