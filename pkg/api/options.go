package api

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// AuditRuleOf returns the audit rule of a method by its full name
// ("/orlop.v1alpha1.Machine/Reset"). It returns nil if the calls of the method are not recorded.
func AuditRuleOf(method string) *AuditRule {
	rule, _ := optionOf(method, E_Audit).(*AuditRule)
	return rule
}

// FanoutOf returns how a command that addresses several machines calls the method with this full
// name.
func FanoutOf(method string) Fanout {
	fanout, _ := optionOf(method, E_Fanout).(Fanout)
	return fanout
}

// ApprovalRuleOf returns the approval rule of a method by its full name. It returns nil for a
// method that changes no data.
func ApprovalRuleOf(method string) *ApprovalRule {
	rule, _ := optionOf(method, E_ApprovalRule).(*ApprovalRule)
	return rule
}

// ApprovalOf returns the approval in a request; empty for a request without one.
func ApprovalOf(request proto.Message) []byte {
	if r, ok := request.(interface{ GetApproval() []byte }); ok {
		return r.GetApproval()
	}
	return nil
}

// optionOf returns the value of an option of a method, or nil for an unknown method.
func optionOf(method string, option protoreflect.ExtensionType) any {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	m, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	return proto.GetExtension(m.Options(), option)
}
