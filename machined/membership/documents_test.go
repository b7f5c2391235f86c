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
		t.Error("the documents of the worker contain encryption keys")
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

// TestWorkerFields checks that a new worker has the same value as the control plane in each field
// that ClusterHealth compares, and that at least one of the other fields has another value.
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
		t.Error("no field of a worker differs from that of the control plane, so the test compares nothing")
	}
}
