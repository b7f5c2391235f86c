// Package extensions provides the extensions of a machine (docs/decisions/0105-extensions.md):
//
//	store.go      the directory on DATA with manifests, statements and images, by digest
//	sources.go    the places that can have an image
//	fetch.go      fetches a missing extension, its statement first
//	plan.go       pure: which stored extensions take effect, and why the others do not
//	files.go      the files of the system, and the directories of services
//	ops_linux.go  loop device, dm-verity, mounts, and the overlay on /usr
//	manager.go    the activation at boot, the task that fetches, the topic
//
// A change of the configuration takes effect at the next boot. The package starts no process: the
// plan of the node (machined/nodeplan) contains the services and runtime handlers of the active
// extensions.
package extensions
