// Package definitions has the definitions of the kinds that describe machines. controller-gen
// writes the files from the types: `go generate ./pkg/machineapi`. The kinds of upstream have only
// the version v1beta2, without the fields that have no effect here.
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

// ofClaims are the kinds that only claims need (docs/decisions/0107-claims.md).
var ofClaims = []string{"MachineDeployment", "MachineSet", "OrlopApprovalRule", "OrlopMachineTemplate"}

// All returns the definitions, by the name of their files, with or without the kinds that only
// claims need. An error is a broken build.
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

// withoutEffect are the fields of the specifications of upstream's kinds without an effect: the
// topology by classes, and the replacement, the names and the order of machines of a set.
var withoutEffect = map[string][]string{
	"Cluster":           {"topology"},
	"MachineDeployment": {"deletion", "machineNaming", "remediation", "rollout"},
	"MachineSet":        {"deletion", "machineNaming"},
}

// reduce removes the fields of upstream's kinds without an effect in this system, and the status of
// the former version. A client that sets them gets an error instead of no effect.
func reduce(d *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range d.Spec.Versions {
		for _, field := range withoutEffect[d.Spec.Names.Kind] {
			delete(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties, field)
		}
		if d.Spec.Names.Kind == "MachineHealthCheck" { // a repair by objects of another project
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
