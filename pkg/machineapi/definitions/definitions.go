// Package definitions has the CustomResourceDefinitions of the kinds that describe machines. `go
// generate ./pkg/machineapi` generates the YAML files from the types by controller-gen. The
// definitions of the kinds of Cluster API have only the version v1beta2, and lack the fields that
// have no effect in this system.
package definitions

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// ofClaims are the kinds that are only needed if claims are enabled
// (docs/decisions/0107-claims.md).
var ofClaims = []string{"MachineDeployment", "MachineSet", "OrlopApprovalRule", "OrlopMachineTemplate"}

// All returns the definitions, sorted by the names of their files. If claims is false, it omits the
// kinds of ofClaims. It fails only if an embedded file is invalid.
func All(claims bool) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("definitions: %w", err)
	}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, d); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !claims && slices.Contains(ofClaims, d.Spec.Names.Kind) {
			continue
		}
		reduce(d)
		all = append(all, d)
	}
	return all, nil
}

// withoutEffect contains, for kinds of Cluster API, the fields of the specification that have no
// effect in this system. These fields are for topologies by classes, and for the replacement, the
// names and the order of the machines of a set.
var withoutEffect = map[string][]string{
	"Cluster":           {"topology"},
	"MachineDeployment": {"deletion", "machineNaming", "remediation", "rollout"},
	"MachineSet":        {"deletion", "machineNaming"},
}

// reduce removes the fields of withoutEffect from the definition, and the status of the former
// version v1beta1. So a client that sets such a field gets an error, and not a field without an
// effect.
func reduce(d *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range d.Spec.Versions {
		for _, field := range withoutEffect[d.Spec.Names.Kind] {
			delete(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties, field)
		}
		if d.Spec.Names.Kind == "MachineHealthCheck" { // without repairs by another project
			delete(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["remediation"].Properties, "templateRef")
		}
		delete(v.Schema.OpenAPIV3Schema.Properties["status"].Properties, "deprecated")
	}
	for i, v := range d.Spec.Versions {
		d.Spec.Versions[i].AdditionalPrinterColumns = slices.DeleteFunc(v.AdditionalPrinterColumns, func(c apiextensionsv1.CustomResourceColumnDefinition) bool {
			return strings.HasPrefix(c.JSONPath, ".spec.topology.")
		})
	}
}
