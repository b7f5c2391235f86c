package api_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
)

// TestEveryMethodHasARole checks that every method has a role. apid would reject all calls of a
// method without a role.
func TestEveryMethodHasARole(t *testing.T) {
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
		if _, known := api.Role_name[int32(role)]; !known || role == api.Role_ROLE_UNSPECIFIED {
			t.Errorf("%s: no role; add option (role) = … to the method in orlop.proto", m.FullName())
		}
	})
}

// TestEveryMethodHasAuditRule checks that every method above ROLE_READER has an audit rule, by
// which its calls are recorded. The rule has a target, or is explicitly empty.
func TestEveryMethodHasAuditRule(t *testing.T) {
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
		if role > api.Role_ROLE_READER && !proto.HasExtension(m.Options(), api.E_Audit) {
			t.Errorf("%s: no audit rule; add option (audit) = { target: … }, or {} for a call without an object, to the method in orlop.proto", m.FullName())
		}
	})
}

// TestEveryMethodHasFanout checks that every method has the option fanout, which says how a command
// calls the method on several machines.
func TestEveryMethodHasFanout(t *testing.T) {
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		fanout := api.FanoutOf(fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
		if _, known := api.Fanout_name[int32(fanout)]; !known || fanout == api.Fanout_FANOUT_UNSPECIFIED {
			t.Errorf("%s: no fanout for calls on several machines; add option (fanout) = … to the method in orlop.proto", m.FullName())
		}
	})
}

// TestReadersReadOnly checks that readers and machines may call only the methods in a list. The
// methods of this list read, and do not change the machine.
func TestReadersReadOnly(t *testing.T) {
	reads := []string{"Get", "List", "Watch", "Events", "Version", "Health", "Service", "Kernel", "Status", "DescribeBundle", "Download", "ReadSBOM", "Read", "History", "Compare",
		"ReadFile", "ListFiles", "ListCertificates", "ListMembers", "ListPending", "ListSuspended", "ListSnapshots",
		"Renew", // issues a new certificate with the same name and role to the caller
		"Join",  // for machines: issues the certificates of their membership or ticket
		"GetRevocations", "GetMembership",
		"Resolve", "ReadBlob", // of images
		"ClusterHealth", "ReportMachine",
		"GetKeys", "Attest", // the TPM stores nothing of a call
		"Relay", // the other machine's listener authorizes the caller
	}
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		if role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role); role > api.Role_ROLE_READER {
			return
		}
		for _, name := range reads {
			if string(m.Name()) == name {
				return
			}
		}
		t.Errorf("%s: readers may call this method, but its name is not in the list of reading methods: %s; give the method another role, or check that it only reads and add it to the list",
			m.FullName(), strings.Join(reads, ", "))
	})
}

// TestRequestsAreNotShared checks that no two methods share a request message. Otherwise, a new
// field for one method would also appear in the other.
func TestRequestsAreNotShared(t *testing.T) {
	shared := map[protoreflect.FullName]bool{
		"orlop.v1alpha1.GetRequest":   true, // Get and Watch read the same topics
		"orlop.v1alpha1.PowerRequest": true, // Reboot and Shutdown differ only in their last step
	}
	users := map[protoreflect.FullName][]string{}
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		name := m.Input().FullName()
		users[name] = append(users[name], string(m.FullName()))
	})
	for name, methods := range users {
		if len(methods) > 1 && !shared[name] {
			t.Errorf("%s is the request of %s; give each method its own request message", name, strings.Join(methods, " and "))
		}
	}
}

// TestEveryChangeHasApprovalRule checks that every method that changes data is guarded, or has a
// reason why it needs no approval. The rule of a guarded method describes the effect of a call, and
// the request has the field that carries the approval.
func TestEveryChangeHasApprovalRule(t *testing.T) {
	guarded := 0
	eachMethod(t, func(m protoreflect.MethodDescriptor) {
		name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
		audit, rule := api.AuditRuleOf(name), api.ApprovalRuleOf(name)
		field := m.Input().Fields().ByName(approval.Field)
		isGuarded := rule.GetGuard() != api.Guard_GUARD_UNSPECIFIED
		switch {
		case audit == nil || audit.ReadOnly:
			if rule != nil {
				t.Errorf("%s: has an approval rule, but changes no data", name)
			}
			return
		case isGuarded == (rule.GetExempt() != ""):
			t.Errorf("%s: changes data; add option (approval_rule) = { guard: …, effect: … }, or { exempt: … } with the reason why two operators need not approve it", name)
		case isGuarded != (rule.GetEffect() != ""):
			t.Errorf("%s: the approval rule of a guarded method must have an effect, and that of another method must have none", name)
		case isGuarded && (field == nil || field.Kind() != protoreflect.BytesKind):
			t.Errorf("%s: is guarded, so its request needs the field `bytes %s`", name, approval.Field)
		case isGuarded && !strings.HasPrefix(string(api.Guard_name[int32(rule.Guard)]), "GUARD_"):
			t.Errorf("%s: unknown guard %v", name, rule.Guard)
		}
		if isGuarded {
			guarded++
		}
	})
	if guarded != 9 {
		t.Errorf("%d guarded methods, want 9: correct the table in docs/decisions/0123-two-person-approval.md, too", guarded)
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
