package kubeapiserver

import (
	"slices"
	"strings"

	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

const enablePlugins = "--enable-admission-plugins="

// AdmissionPlugins returns the admission plugins of a server with these flags, in the order in
// which the server calls them. It needs no server.
func AdmissionPlugins(args []string) []string {
	var enabled []string
	for _, arg := range args {
		if list, found := strings.CutPrefix(arg, enablePlugins); found {
			enabled = strings.Split(list, ",")
		}
	}
	off, order := kubeoptions.DefaultOffAdmissionPlugins(), slices.Clone(kubeoptions.AllOrderedPlugins)
	for _, own := range ownPlugins {
		off.Insert(own.name)
		order = append(order, own.name)
	}
	return slices.DeleteFunc(order, func(name string) bool { return off.Has(name) && !slices.Contains(enabled, name) })
}

// IsOwnPlugin reports whether an admission plugin is part of Orlop OS, not of Kubernetes.
func IsOwnPlugin(name string) bool {
	for _, own := range ownPlugins {
		if own.name == name {
			return true
		}
	}
	return false
}
