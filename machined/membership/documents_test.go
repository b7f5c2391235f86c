package membership

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestWorkerDocuments checks that the documents of a worker contain all cluster-wide fields, but no
// keys and no fields of a control plane.
func TestWorkerDocuments(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	got, want := reflect.ValueOf(workerDocuments(c, "w1").Cluster.Spec), reflect.ValueOf(c.Cluster.Spec)
	if keys := got.FieldByName("AcceptedEncryptionKeys"); keys.Len() > 0 {
		t.Error("the worker has keys of Secrets")
	}
	for i := range want.NumField() {
		field := want.Type().Field(i).Name
		if slices.Contains([]string{"PKI", "SecretsEncryptionKey", "AcceptedEncryptionKeys", "Etcd", "Kubernetes"}, field) {
			continue
		}
		if a, b := got.Field(i).Interface(), want.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the worker has %v, and the control plane %v", field, a, b)
		}
	}
}

// TestWorkerFields checks that a new worker has the control plane's value in every field that
// ClusterHealth compares, and that some other field differs.
func TestWorkerFields(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	plane, worker := config.ClusterDigests(c, nil), config.ClusterDigests(workerDocuments(c, "w1"), nil)
	differ := 0
	for path, digest := range plane {
		same := bytes.Equal(digest, worker[path])
		if !same {
			differ++
		}
		if config.IsWorkerField(path) && !same {
			t.Errorf("%s: ClusterHealth compares the field, and a new worker has another value", path)
		}
	}
	if differ == 0 {
		t.Error("a worker has all fields of the control plane")
	}
}
