// Package imagepolicy requires signatures of the images that containers run
// (Machine.spec.node.imagePolicy, docs/decisions/0115-image-policy.md).
//
// The kubelet reaches containerd through a proxy of this package. The proxy forwards every call of
// CRI unchanged, except two:
//
//	CreateContainer   the image of the container and those of its image volumes need a
//	                  signature, also if they are present already or were imported. The proxy
//	                  replaces each name by the ID that it has checked, so a tag that moves
//	                  meanwhile has no effect.
//	PullImage         an image that no rule accepts is not pulled; a pulled image without an
//	                  accepted signature is an error of the pull.
//
// check.go decides, proxy.go forwards. Without rules there is no proxy. The proxy parses documents
// of foreign origin in the process of the kubelet, with pkg/imagestore and
// pkg/imagestore/imagesignature, not in PID 1.
package imagepolicy
