// Package images provides container images and the artifacts of add-ons, and configures how
// containerd pulls images from registries.
//
// How an image that was imported on a control-plane machine reaches all machines of the cluster
// (docs/decisions/0041-images-from-peers.md):
//
//  1. The import labels the names of the image (pkg/imagestore).
//  2. containerd of another machine calls a mirror on loopback before any registry (registries.go,
//     machined/images/mirror).
//  3. The mirror reads the images imported on its own machine, calls the control-plane machines
//     (Resolve), and passes on the blobs of the first machine that has the image (ReadBlob).
//
// The package owns containerd's registry files, the mirror on loopback, and the directory of
// artifacts on DATA. It starts no containerd and stops no container.
package images
