package kubeapiserver

import (
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// ownPlugins are the admission plugins that are compiled in. They say what RBAC cannot, and no object of the cluster takes them away.
// Policies (ValidatingAdmissionPolicy) could say it, too, but they make the server build the whole of its OpenAPI documents at its start
// (docs/decisions/0006-openapi-when-asked.md).
var ownPlugins = []struct {
	name   string
	plugin admission.Interface
}{
	{NodeAgents, nodeAgents{admission.NewHandler(admission.Create, admission.Update, admission.Delete)}},
	{NodeNotes, nodeNotes{admission.NewHandler(admission.Create, admission.Update)}},
	{ReservedNamespaces, reservedNamespaces{admission.NewHandler(admission.Create, admission.Delete)}},
}

// registerPlugins adds them to those that the flags can name.
func registerPlugins(opts *options.ServerRunOptions) {
	generic := opts.Admission.GenericAdmission
	generic.RecommendedPluginOrder = slices.Clone(generic.RecommendedPluginOrder)
	for _, own := range ownPlugins {
		generic.Plugins.Register(own.name, func(io.Reader) (admission.Interface, error) { return own.plugin, nil })
		generic.RecommendedPluginOrder = append(generic.RecommendedPluginOrder, own.name)
		generic.DefaultOffPlugins.Insert(own.name)
	}
}
