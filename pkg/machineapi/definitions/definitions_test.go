package definitions

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// definition is a parsed CustomResourceDefinition with its schema.
type definition struct {
	*apiextensionsv1.CustomResourceDefinition
	structural *schema.Structural
	props      *apiextensions.JSONSchemaProps
}

// definitions returns the definitions by kind. The test fails if the API server would reject a
// definition.
func definitions(t *testing.T) map[string]definition {
	t.Helper()
	all, err := All(true)
	if err != nil {
		t.Fatal(err)
	}
	parsed := map[string]definition{}
	for _, d := range all {
		apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
		var internal apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d.DeepCopy(), &internal, nil); err != nil {
			t.Fatal(err)
		}
		internal.Status.StoredVersions = []string{d.Spec.Versions[0].Name}
		for _, err := range crdvalidation.ValidateCustomResourceDefinition(t.Context(), &internal) {
			t.Errorf("%s: %v", d.Name, err)
		}
		props := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(d.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(props)
		if err != nil {
			t.Fatal(err)
		}
		parsed[d.Spec.Names.Kind] = definition{d, structural, props}
	}
	return parsed
}

// TestDefinitions checks that the API server accepts every definition. Each definition must have a
// single version, the subresource status, and a text for `kubectl explain`.
func TestDefinitions(t *testing.T) {
	all := definitions(t)
	for kind, d := range all {
		if len(d.Spec.Versions) != 1 || d.Spec.Versions[0].Subresources == nil || d.Spec.Versions[0].Subresources.Status == nil {
			t.Errorf("%s: want one version with the subresource status", kind)
		}
		if d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description == "" {
			t.Errorf("%s: has no description", kind)
		}
		// OrlopHost, OrlopApprovalRule, ClusterHealth and Component are not part of the contract of
		// Cluster API.
		if own := strings.HasPrefix(kind, "Orlop") && kind != "OrlopHost" && kind != "OrlopApprovalRule"; own && d.Labels["cluster.x-k8s.io/v1beta2"] != d.Spec.Versions[0].Name {
			t.Errorf("%s: has no label of the contract v1beta2", kind)
		}
	}
	for _, kind := range []string{"Cluster", "Machine", "OrlopCluster", "OrlopControlPlane", "OrlopMachine", "OrlopHost", "ClusterHealth", "Component", "MachineHealthCheck", "MachineDeployment", "MachineSet", "OrlopMachineTemplate", "OrlopApprovalRule"} {
		if _, there := all[kind]; !there {
			t.Errorf("%s: has no definition", kind)
		}
	}
	if len(all) != 13 {
		t.Errorf("%d definitions, want 13", len(all))
	}
	without, err := All(false)
	if err != nil || len(without) != 9 {
		t.Errorf("%d definitions without claims, want 9 (%v)", len(without), err)
	}
	for _, kind := range []string{"MachineDeployment", "MachineSet"} {
		if s := all[kind].Spec.Versions[0].Subresources.Scale; s == nil || s.SpecReplicasPath != ".spec.replicas" {
			t.Errorf("%s: `kubectl scale` does not work", kind)
		}
	}
}

// TestObjects validates the objects of testdata as the API server does. The command `create` has an
// object as its input. The command `update` has the old and the new object, separated by "---". The
// output is the list of errors.
func TestObjects(t *testing.T) {
	all := definitions(t)
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			texts := strings.Split(d.Input, "\n---\n")
			var objects []map[string]any
			for _, text := range texts {
				object := map[string]any{}
				raw, err := yaml.YAMLToJSON([]byte(text))
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				if err := json.Unmarshal(raw, &object); err != nil {
					d.Fatalf(t, "%v", err)
				}
				objects = append(objects, object)
			}
			current, old := objects[len(objects)-1], any(nil)
			if d.Cmd == "update" {
				old = objects[0]
			}
			def, there := all[fmt.Sprint(current["kind"])]
			if !there {
				d.Fatalf(t, "unknown kind %v", current["kind"])
			}
			return strings.Join(def.validate(t, current, old), "\n")
		})
	})
}

// validate returns the errors and the unknown fields of object, or "valid" if there are none. For
// an update, old is the former object; otherwise it is nil.
func (d definition) validate(t *testing.T, object map[string]any, old any) []string {
	t.Helper()
	schemaValidator, _, err := validation.NewSchemaValidator(d.props)
	if err != nil {
		t.Fatal(err)
	}
	errs := validation.ValidateCustomResource(nil, object, schemaValidator)
	celErrs, _ := cel.NewValidator(d.structural, true, math.MaxInt64).Validate(context.Background(), nil, d.structural, object, old, math.MaxInt64)
	var lines []string
	for _, e := range slices.Concat(errs, celErrs) {
		lines = append(lines, strings.TrimPrefix((&field.Error{Type: e.Type, Field: e.Field, BadValue: e.BadValue, Detail: e.Detail}).Error(), "<nil>"))
	}
	for _, unknown := range pruning.PruneWithOptions(object, d.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		lines = append(lines, "unknown field "+unknown)
	}
	slices.Sort(lines)
	if len(lines) == 0 {
		return []string{"valid"}
	}
	return lines
}

// TestDefinitionsHaveAllFields checks that the definitions contain every field of the types. The
// API server drops a field that is missing in the definition, for example because `make generate`
// was not run.
func TestDefinitionsHaveAllFields(t *testing.T) {
	all := definitions(t)
	for kind, object := range map[string]any{
		"OrlopCluster": &machineapi.OrlopCluster{}, "OrlopMachine": &machineapi.OrlopMachine{}, "OrlopControlPlane": &controlplane.OrlopControlPlane{},
		"OrlopMachineTemplate": &machineapi.OrlopMachineTemplate{},
		"OrlopHost":            &machineapi.OrlopHost{}, "OrlopApprovalRule": &machineapi.OrlopApprovalRule{}, "ClusterHealth": &machineapi.ClusterHealth{}, "Component": &machineapi.Component{},
	} {
		fill(reflect.ValueOf(object).Elem())
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		content := map[string]any{}
		if err := json.Unmarshal(raw, &content); err != nil {
			t.Fatal(err)
		}
		for _, unknown := range pruning.PruneWithOptions(content, all[kind].structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
			t.Errorf("%s: the definition has no field %s: run make generate", kind, unknown)
		}
	}
}

// fill sets a value, or each field of a struct, to a value that is not empty.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("a")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[metav1.Time]() {
			v.Set(reflect.ValueOf(metav1.Unix(1, 0)))
			return
		}
		if v.Type() == reflect.TypeFor[metav1.ObjectMeta]() || v.Type() == reflect.TypeFor[metav1.TypeMeta]() {
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	default:
		panic("fill: unknown kind " + v.Kind().String())
	}
}
