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
	// LocalSnapshotClass is the VolumeSnapshotClass that the cluster has from the beginning.
	LocalSnapshotClass = "orlop-local"
	// DefaultSnapshotClass marks the VolumeSnapshotClass of snapshots that name none.
	DefaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"
)

// approved says where upstream has discussed the kinds: the API server wants to know that of every
// definition in a group below k8s.io.
const approved = "https://github.com/kubernetes-csi/external-snapshotter/pull/814"

// localSnapshotClass destroys what was taken with the object that asked for it.
func localSnapshotClass() *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: LocalSnapshotClass, Annotations: map[string]string{DefaultSnapshotClass: "true"}},
		Driver:     VolumeDriver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

// keptSnapshots are the kinds of snapshots and their class, each made where it is missing. What is
// there stays: the definitions may be an add-on's, whose driver has snapshots too, and newer than
// these.
func keptSnapshots(config *rest.Config) ([]kept, error) {
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	// the server's connection to itself speaks protobuf, which these kinds have none of
	asJSON := rest.CopyConfig(config)
	asJSON.ContentType, asJSON.AcceptContentTypes = runtime.ContentTypeJSON, ""
	snapshots, err := versioned.NewForConfig(asJSON)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	var all []kept
	for _, d := range snapshotDefinitions() {
		all = append(all, kept{definitionsResource, "", d.Name, func(ctx context.Context) error {
			return ensureObject(ctx, definitions.ApiextensionsV1().CustomResourceDefinitions(), d.DeepCopy(), func(*apiextensionsv1.CustomResourceDefinition) bool { return false })
		}})
	}
	// it is refused until its kind is served
	return append(all, kept{snapshotsResource, "", LocalSnapshotClass, func(ctx context.Context) error {
		return ensureObject(ctx, snapshots.SnapshotV1().VolumeSnapshotClasses(), localSnapshotClass(), func(*snapshotv1.VolumeSnapshotClass) bool { return false })
	}}), nil
}

// snapshotDefinitions are the three kinds of snapshot.storage.k8s.io/v1. Their fields are those of
// upstream's types; what those do not tell, because it stands in comments, stands here.
func snapshotDefinitions() []*apiextensionsv1.CustomResourceDefinition {
	snapshot := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshot]())
	snapshot.Description = "What somebody wants to have of a claim's volume: what is in it at a moment, or a snapshot that is there already."
	rules(snapshot, "spec.source", either("persistentVolumeClaimName", "volumeSnapshotContentName"), fixed)
	at(snapshot, "spec.volumeSnapshotClassName", func(s *apiextensionsv1.JSONSchemaProps) { s.MinLength = new(int64(1)) })

	content := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshotContent]())
	content.Description = "A snapshot as a storage system has it, and the VolumeSnapshot that it belongs to."
	rules(content, "spec.source", either("volumeHandle", "snapshotHandle"), fixed)
	rules(content, "spec.driver", fixed)
	rules(content, "spec.sourceVolumeMode", fixed)
	at(content, "spec.volumeSnapshotRef", func(s *apiextensionsv1.JSONSchemaProps) { s.Required = []string{"name", "namespace"} })
	at(content, "spec.deletionPolicy", policies)
	at(content, "status.restoreSize", func(s *apiextensionsv1.JSONSchemaProps) { s.Minimum = new(float64) })

	class := schemaOf(reflect.TypeFor[snapshotv1.VolumeSnapshotClass]())
	class.Description = "How a driver takes snapshots, and what becomes of them with their VolumeSnapshot."
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

// schemaOf is the schema of a Go type, by its JSON: a field without omitempty that is no pointer
// has to be there.
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
	panic(fmt.Sprintf("%s: no schema for it is known", t)) // a test makes all of them
}

// at lets change something in a schema, by the way to it.
func at(schema *apiextensionsv1.JSONSchemaProps, way string, change func(*apiextensionsv1.JSONSchemaProps)) {
	name, rest, deeper := strings.Cut(way, ".")
	field, there := schema.Properties[name]
	if !there {
		panic("there is no field " + name) // as above
	}
	if deeper {
		at(&field, rest, change)
	} else {
		change(&field)
	}
	schema.Properties[name] = field
}

// fixed says that something stays as it was made.
var fixed = apiextensionsv1.ValidationRule{Rule: "self == oldSelf", Message: "cannot be changed"}

// either says that one of two fields is there and the other is not.
func either(a, b string) apiextensionsv1.ValidationRule {
	return apiextensionsv1.ValidationRule{Rule: fmt.Sprintf("has(self.%s) != has(self.%s)", a, b), Message: fmt.Sprintf("must have one of %s and %s", a, b)}
}

func rules(schema *apiextensionsv1.JSONSchemaProps, way string, all ...apiextensionsv1.ValidationRule) {
	at(schema, way, func(s *apiextensionsv1.JSONSchemaProps) { s.XValidations = all })
}

// policies are what may become of a snapshot.
func policies(s *apiextensionsv1.JSONSchemaProps) {
	for _, p := range []snapshotv1.DeletionPolicy{snapshotv1.VolumeSnapshotContentDelete, snapshotv1.VolumeSnapshotContentRetain} {
		text, err := json.Marshal(p)
		if err != nil {
			panic(err) // a string
		}
		s.Enum = append(s.Enum, apiextensionsv1.JSON{Raw: text})
	}
}
