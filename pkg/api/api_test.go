package api_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/pkg/api"
)

// TestEveryMethodHasARole fails for a method that nobody decided about: apid would refuse it to
// everyone.
func TestEveryMethodHasARole(t *testing.T) {
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
		if _, known := api.Role_name[int32(role)]; !known || role == api.Role_ROLE_UNSPECIFIED {
			t.Errorf("%s: no role; add option (role) = … to the method in orlop.proto", m.FullName())
		}
	})
}

// TestReadersLookOnly keeps the roles honest: a method that a reader or a machine may call is one
// that by its name only looks.
func TestReadersLookOnly(t *testing.T) {
	looks := []string{"Get", "List", "Watch", "Events", "Version", "Health", "Service", "Kernel", "Status", "DescribeBundle", "Download", "Read", "History", "Compare",
		"ReadFile", "ListFiles", "ListCertificates", "ListMembers", "ListPending", "ListSuspended", "ListSnapshots",
		"Renew", // gives the caller no more than what he came with
		"Join",  // machines only, which get what they have, or have a ticket for
		"GetRevocations", "GetMembership",
		"Resolve", "ReadBlob", // of an image
		"Relay", // what comes of it, the other machine's door decides
	}
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		if role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role); role > api.Role_ROLE_READER {
			return
		}
		for _, name := range looks {
			if string(m.Name()) == name {
				return
			}
		}
		t.Errorf("%s: readers may call it, but its name is none of %s; give it another role, or add it here after thinking",
			m.FullName(), strings.Join(looks, ", "))
	})
}

// TestRequestsAreNotShared fails when two methods share a request, so that one cannot get a field
// without the other.
func TestRequestsAreNotShared(t *testing.T) {
	shared := map[protoreflect.FullName]bool{
		"orlop.v1alpha1.GetRequest":   true, // Get and Watch look at the same topics
		"orlop.v1alpha1.PowerRequest": true, // Reboot and Shutdown differ in their end only
	}
	users := map[protoreflect.FullName][]string{}
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		name := m.Input().FullName()
		users[name] = append(users[name], string(m.FullName()))
	})
	for name, methods := range users {
		if len(methods) > 1 && !shared[name] {
			t.Errorf("%s is the request of %s; give each its own", name, strings.Join(methods, " and "))
		}
	}
}

func eachMethod(t *testing.T, do func(protoreflect.MethodDescriptor)) {
	t.Helper()
	services, count := api.File_orlop_proto.Services(), 0
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			do(services.Get(i).Methods().Get(j))
			count++
		}
	}
	if count < 17 {
		t.Errorf("only %d methods seen; the API has at least 17", count)
	}
}
