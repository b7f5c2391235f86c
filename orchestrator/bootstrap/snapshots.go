package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

const (
	// LocalSnapshotClass is the VolumeSnapshotClass that every new cluster has.
	LocalSnapshotClass = "orlop-local"
	// DefaultSnapshotClass marks the VolumeSnapshotClass of snapshots that name no class.
	DefaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"
)

// approved is the URL of upstream's API review. The API server requires the URL in every definition
// of a group below k8s.io.
const approved = "https://github.com/kubernetes-csi/external-snapshotter/pull/814"

// localSnapshotClass returns the class of local snapshots: a snapshot is deleted together with its
// VolumeSnapshot.
func localSnapshotClass() *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: LocalSnapshotClass, Annotations: map[string]string{DefaultSnapshotClass: "true"}},
		Driver:     VolumeDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

// managedSnapshots are the kinds of snapshots and their class. Missing objects are created.
// Existing objects stay as they are: the definitions may belong to an add-on with another driver,
// and be newer than the definitions of this package.
func managedSnapshots(config *rest.Config) ([]managed, error) {
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	// the server's connection to itself uses protobuf, which these kinds do not support
	asJSON := rest.CopyConfig(config)
	asJSON.ContentType, asJSON.AcceptContentTypes = runtime.ContentTypeJSON, ""
	snapshots, err := versioned.NewForConfig(asJSON)
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	var all []managed
	for _, d := range snapshotDefinitions() {
		all = append(all, managed{definitionsResource, "", d.Name, func(ctx context.Context) error {
			return ensureObject(ctx, definitions.ApiextensionsV1().CustomResourceDefinitions(), d.DeepCopy(), func(*apiextensionsv1.CustomResourceDefinition) bool { return false })
		}})
	}
	// the class is rejected until its kind is served
	return append(all, managed{snapshotsResource, "", LocalSnapshotClass, func(ctx context.Context) error {
		return ensureObject(ctx, snapshots.SnapshotV1().VolumeSnapshotClasses(), localSnapshotClass(), func(*snapshotv1.VolumeSnapshotClass) bool { return false })
	}}), nil
}

// snapshotDefinitions are the three kinds of snapshot.storage.k8s.io/v1. The fields come from
// upstream's types; the rules in comments of these types are added here.
func snapshotDefinitions() []*apiextensionsv1.CustomResourceDefinition {
	snapshot := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshot]())
	snapshot.Description = "A request for a snapshot of a claim's volume, or for the use of an existing snapshot."
	rules(snapshot, "spec.source", either("persistentVolumeClaimName", "volumeSnapshotContentName"), fixed)
	at(snapshot, "spec.volumeSnapshotClassName", func(s *apiextensionsv1.JSONSchemaProps) { s.MinLength = new(int64(1)) })

	content := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshotContent]())
	content.Description = "A snapshot in a storage system, and the VolumeSnapshot to which it belongs."
	rules(content, "spec.source", either("volumeHandle", "snapshotHandle"), fixed)
	rules(content, "spec.driver", fixed)
	rules(content, "spec.sourceVolumeMode", fixed)
	at(content, "spec.volumeSnapshotRef", func(s *apiextensionsv1.JSONSchemaProps) { s.Required = []string{"name", "namespace"} })
	at(content, "spec.deletionPolicy", policies)
	at(content, "status.restoreSize", func(s *apiextensionsv1.JSONSchemaProps) { s.Minimum = new(float64) })

	class := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshotClass]())
	class.Description = "How a driver takes snapshots, and whether it deletes them with their VolumeSnapshot."
	at(class, "deletionPolicy", policies)

	age := column("Age", "date", ".metadata.creationTimestamp")
	return []*apiextensionsv1.CustomResourceDefinition{
		definition("VolumeSnapshotClass", "volumesnapshotclasses", apiextensionsv1.ClusterScoped, class, []string{"vsclass", "vsclasses"},
			column("Driver", "string", ".driver"), column("DeletionPolicy", "string", ".deletionPolicy"), age),
		definition("VolumeSnapshotContent", "volumesnapshotcontents", apiextensionsv1.ClusterScoped, content, []string{"vsc", "vscs"},
			column("ReadyToUse", "boolean", ".status.readyToUse"), column("RestoreSize", "integer", ".status.restoreSize"),
			column("DeletionPolicy", "string", ".spec.deletionPolicy"), column("Driver", "string", ".spec.driver"),
			column("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"), column("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
			column("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"), age),
		definition("VolumeSnapshot", "volumesnapshots", apiextensionsv1.NamespaceScoped, snapshot, []string{"vs"},
			column("ReadyToUse", "boolean", ".status.readyToUse"), column("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
			column("SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"), column("RestoreSize", "string", ".status.restoreSize"),
			column("SnapshotClass", "string", ".spec.volumeSnapshotClassName"), column("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
			column("CreationTime", "date", ".status.creationTime"), age),
	}
}

func definition(kind, plural string, scope apiextensionsv1.ResourceScope, schema *apiextensionsv1.JSONSchemaProps, short []string, columns ...apiextensionsv1.CustomResourceColumnDefinition) *apiextensionsv1.CustomResourceDefinition {
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v1", Served: true, Storage: true, AdditionalPrinterColumns: columns,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema},
	}
	if _, has := schema.Properties["status"]; has {
		version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + snapshotv1.GroupName, Annotations: map[string]string{"api-approved.kubernetes.io": approved}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: snapshotv1.GroupName, Scope: scope, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.ToLower(kind), ShortNames: short,
			},
		},
	}
}

func column(name, kind, path string) apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path}
}

// schemaOf returns the schema of a Go type in JSON: a field without omitempty that is not a pointer
// is required.
func schemaOf(t reflect.Type) *apiextensionsv1.JSONSchemaProps {
	switch t {
	case reflect.TypeFor[metav1.ObjectMeta]():
		return &apiextensionsv1.JSONSchemaProps{Type: "object"}
	case reflect.TypeFor[metav1.Time]():
		return &apiextensionsv1.JSONSchemaProps{Type: "string", Format: "date-time"}
	case reflect.TypeFor[resource.Quantity]():
		return &apiextensionsv1.JSONSchemaProps{XIntOrString: true, AnyOf: []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return &apiextensionsv1.JSONSchemaProps{Type: "string"}
	case reflect.Bool:
		return &apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	case reflect.Int64:
		return &apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64"}
	case reflect.Map:
		return &apiextensionsv1.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: schemaOf(t.Elem())}}
	case reflect.Struct:
		s := &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if options == "inline" {
				for name, field := range schemaOf(f.Type).Properties {
					s.Properties[name] = field
				}
				continue
			}
			s.Properties[name] = *schemaOf(f.Type)
			if !strings.Contains(options, "omitempty") && f.Type.Kind() != reflect.Pointer {
				s.Required = append(s.Required, name)
			}
		}
		return s
	}
	panic(fmt.Sprintf("%s: no schema for it is known", t)) // a test builds all schemas
}

// The function at changes the part of a schema at a path.
func at(schema *apiextensionsv1.JSONSchemaProps, path string, change func(*apiextensionsv1.JSONSchemaProps)) {
	name, rest, deeper := strings.Cut(path, ".")
	field, there := schema.Properties[name]
	if !there {
		panic("there is no field " + name) // a test builds all schemas
	}
	if deeper {
		at(&field, rest, change)
	} else {
		change(&field)
	}
	schema.Properties[name] = field
}

// fixed is a rule that forbids changes.
var fixed = apiextensionsv1.ValidationRule{Rule: "self == oldSelf", Message: "cannot be changed"}

// either is a rule that requires exactly one of two fields.
func either(a, b string) apiextensionsv1.ValidationRule {
	return apiextensionsv1.ValidationRule{Rule: fmt.Sprintf("has(self.%s) != has(self.%s)", a, b), Message: fmt.Sprintf("must have exactly one of %s and %s", a, b)}
}

func rules(schema *apiextensionsv1.JSONSchemaProps, path string, all ...apiextensionsv1.ValidationRule) {
	at(schema, path, func(s *apiextensionsv1.JSONSchemaProps) { s.XValidations = all })
}

// policies restricts a field to the deletion policies of a snapshot.
func policies(s *apiextensionsv1.JSONSchemaProps) {
	for _, p := range []snapshotv1.DeletionPolicy{snapshotv1.VolumeSnapshotContentDelete, snapshotv1.VolumeSnapshotContentRetain} {
		text, err := json.Marshal(p)
		if err != nil {
			panic(err) // a string
		}
		s.Enum = append(s.Enum, apiextensionsv1.JSON{Raw: text})
	}
}
