// Package orlop is Orlop OS: an immutable operating system with Kubernetes built in. The package itself is empty; its test
// keeps the rules of the house. ARCHITECTURE.md says where everything is.
package orlop
