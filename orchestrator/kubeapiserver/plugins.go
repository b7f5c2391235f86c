package kubeapiserver

import (
	"slices"
	"strings"

	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

const enablePlugins, disablePlugins = "--enable-admission-plugins=", "--disable-admission-plugins="

// AdmissionPlugins returns the admission plugins of a server with these flags, in the order in
// which the server calls them. No server has to run.
func AdmissionPlugins(args []string) []string {
	off, order := kubeoptions.DefaultOffAdmissionPlugins(), slices.Clone(kubeoptions.AllOrderedPlugins)
	for _, own := range ownPlugins {
		off.Insert(own.name)
		order = append(order, own.name)
	}
	for _, arg := range args {
		if list, found := strings.CutPrefix(arg, enablePlugins); found {
			off.Delete(strings.Split(list, ",")...)
		}
		if list, found := strings.CutPrefix(arg, disablePlugins); found {
			off.Insert(strings.Split(list, ",")...)
		}
	}
	return slices.DeleteFunc(order, off.Has)
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
