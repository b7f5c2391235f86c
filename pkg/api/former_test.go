package api

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// releasedMethods returns the methods of version 0.1.0 by full name. It reads them from the stored
// API descriptors of this version.
func releasedMethods(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	text, err := os.ReadFile("testdata/released/0.1.0/api.binpb")
	if err != nil {
		t.Fatal(err)
	}
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(text, set); err != nil {
		t.Fatal(err)
	}
	methods := map[string]protoreflect.MethodDescriptor{}
	local := new(protoregistry.Files)
	for _, file := range set.File {
		d, err := protodesc.FileOptions{AllowUnresolvable: true}.New(file, local)
		if err != nil {
			t.Fatal(err)
		}
		if err := local.RegisterFile(d); err != nil {
			t.Fatal(err)
		}
		if d.Path() != File_orlop_proto.Path() {
			continue
		}
		for i := range d.Services().Len() {
			for s, j := d.Services().Get(i), 0; j < s.Methods().Len(); j++ {
				methods[fullName(s.Methods().Get(j))] = s.Methods().Get(j)
			}
		}
	}
	if len(methods) < 50 {
		t.Fatalf("only %d methods in the stored API descriptors", len(methods))
	}
	return methods
}

func fullName(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func presentMethod(name string) protoreflect.MethodDescriptor {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")))
	if err != nil {
		return nil
	}
	m, _ := d.(protoreflect.MethodDescriptor)
	return m
}

// TestFormerNames checks that each method of version 0.1.0 still exists, under the same name or
// under a new name, with the same role, the same streams and messages that both versions can read.
func TestFormerNames(t *testing.T) {
	released := releasedMethods(t)
	for name, was := range released {
		is := presentMethod(PresentName(name))
		if is == nil {
			t.Errorf("%s: there is no method %s; add its present name to formerNames", name, PresentName(name))
			continue
		}
		if was.IsStreamingClient() != is.IsStreamingClient() || was.IsStreamingServer() != is.IsStreamingServer() {
			t.Errorf("%s: the streams of %s differ", name, is.FullName())
		}
		if had, has := roleOf(was), roleOf(is); had != has || had == Role_ROLE_UNSPECIFIED {
			t.Errorf("%s: required %s, and %s requires %s", name, had, is.FullName(), has)
		}
		for _, problem := range append(incompatible(was.Input(), is.Input(), map[string]bool{}), incompatible(was.Output(), is.Output(), map[string]bool{})...) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	seen := map[string]bool{}
	for former, present := range formerNames {
		if released[former] == nil || released[present] != nil || presentMethod(former) != nil || seen[present] {
			t.Errorf("%s: exists in the present API or not in the former one, or is not the only former name of %s", former, present)
		}
		seen[present] = true
		if PresentName(former) != present || FormerName(present) != former || PresentName(present) != present || FormerName(former) != "" {
			t.Errorf("PresentName and FormerName do not convert %s and %s into each other", former, present)
		}
	}
	if unknown := "/orlop.v1alpha1.Cluster/Any"; PresentName(unknown) != unknown || FormerName(unknown) != "" {
		t.Error("PresentName or FormerName converts an unknown name")
	}
}

func roleOf(m protoreflect.MethodDescriptor) Role {
	// The options are encoded and parsed again, because the stored descriptors have their own type
	// for the extension.
	text, err := proto.Marshal(m.Options())
	if err != nil {
		return Role_ROLE_UNSPECIFIED
	}
	options := new(descriptorpb.MethodOptions)
	if err := proto.Unmarshal(text, options); err != nil {
		return Role_ROLE_UNSPECIFIED
	}
	role, _ := proto.GetExtension(options, E_Role).(Role)
	return role
}

// incompatible returns the fields of a released message that the present message lacks or has with
// another type. seen holds the pairs of messages that are already compared.
func incompatible(was, is protoreflect.MessageDescriptor, seen map[string]bool) (problems []string) {
	if pair := string(was.FullName() + " " + is.FullName()); seen[pair] {
		return nil
	} else {
		seen[pair] = true
	}
	for i := range was.Fields().Len() {
		f := was.Fields().Get(i)
		g := is.Fields().ByNumber(f.Number())
		switch {
		case g == nil:
			problems = append(problems, string(is.FullName())+" lacks the field number of "+string(f.FullName()))
		case f.Kind() != g.Kind() || f.Cardinality() != g.Cardinality():
			problems = append(problems, string(g.FullName())+" has another type than "+string(f.FullName()))
		case f.Kind() == protoreflect.MessageKind:
			problems = append(problems, incompatible(f.Message(), g.Message(), seen)...)
		}
	}
	return problems
}

// TestFormerNamesAreDropped fails from version formerDropped on, which no longer needs the former
// names.
func TestFormerNamesAreDropped(t *testing.T) {
	text, err := os.ReadFile("../../profiles/VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.Fields(string(text))[0]; semver.Compare("v"+version, "v"+formerDropped) >= 0 {
		t.Errorf("version %s: remove pkg/api/former.go and its users", version)
	}
}
