package apid

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sort"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
)

// rule is the required role of a method, and whether its calls are audited.
type rule struct {
	minimum api.Role   // and all higher roles
	narrow  []api.Role // additional roles
	audited bool       // it has an audit rule; a reader may call it nevertheless
}

// roleTable contains the rule of each method, by full name ("/orlop.v1alpha1.Machine/Version").
type roleTable map[string]rule

// newRoleTable reads the rules from the linked descriptors of the API, and adds the two standard
// services.
func newRoleTable() roleTable {
	table := roleTable{}
	for _, m := range apiMethods() {
		table[fullMethod(m)] = ruleOf(m)
	}
	for _, file := range []protoreflect.FileDescriptor{healthpb.File_grpc_health_v1_health_proto, reflectionpb.File_grpc_reflection_v1_reflection_proto} {
		for _, m := range methodsOf(file) {
			table[fullMethod(m)] = rule{minimum: api.Role_ROLE_READER}
		}
	}
	return table
}

func ruleOf(m protoreflect.MethodDescriptor) rule {
	// A method without the option gets ROLE_UNSPECIFIED, which no caller has: every call is
	// rejected.
	least, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
	narrow, _ := proto.GetExtension(m.Options(), api.E_Narrow).([]api.Role)
	return rule{minimum: least, narrow: narrow, audited: proto.HasExtension(m.Options(), api.E_Audit)}
}

// check returns nil if a caller with that role may call the method. The error is a sentence for the
// caller.
func (t roleTable) check(method string, role api.Role) error {
	rule, known := t[method]
	switch {
	case !known:
		return fmt.Errorf("%s: cannot call: %s; compare its version with that of your tool", method, api.UnknownMethod)
	case rule.minimum == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: the method has no role, so no caller may", method)
	case role == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: your certificate names no role; ask for one with O=%s", method, organization(rule.minimum))
	case slices.Contains(rule.narrow, role), !isNarrow(role) && role >= rule.minimum:
		return nil
	}
	return fmt.Errorf("%s: cannot call: it needs the role %s, your certificate has %s", method, organization(rule.minimum), organization(role))
}

// mutates reports whether a method changes the machine or returns a secret; its calls are then
// audited.
func (t roleTable) mutates(method string) bool {
	return t[method].minimum > api.Role_ROLE_READER || t[method].audited
}

// Mutates returns a function that reports whether a method, by its full name, changes the machine
// or returns a secret, so that machined records the calls that apid logs.
func Mutates() func(method string) bool { return newRoleTable().mutates }

func isNarrow(role api.Role) bool { return role > api.Role_ROLE_ADMIN }

// ladder lists the roles in ascending order; each includes the permissions of the roles before it.
// Each narrow role permits a single task.
var (
	ladder = []api.Role{api.Role_ROLE_MACHINE, api.Role_ROLE_READER, api.Role_ROLE_OPERATOR, api.Role_ROLE_ADMIN}
	narrow = []api.Role{api.Role_ROLE_LOG_READER, api.Role_ROLE_IMAGE_IMPORT, api.Role_ROLE_ETCD_BACKUP, api.Role_ROLE_JOIN}
)

// roleOf returns the role of a certificate, limited to most, the highest role that its CA can give:
// the highest ladder role in its organizations, or else the first narrow role, which requires a CA
// that can give every role.
func roleOf(cert *x509.Certificate, most api.Role) api.Role {
	names := func(r api.Role) bool { return slices.Contains(cert.Subject.Organization, organization(r)) }
	for _, r := range slices.Backward(ladder) {
		if names(r) {
			return min(r, most)
		}
	}
	if i := slices.IndexFunc(narrow, names); i >= 0 && most == api.Role_ROLE_ADMIN {
		return narrow[i]
	}
	return api.Role_ROLE_UNSPECIFIED
}

// organization returns the O of a certificate with that role.
func organization(role api.Role) string {
	switch role {
	case api.Role_ROLE_MACHINE:
		return pki.RoleMachine
	case api.Role_ROLE_READER:
		return pki.RoleReader
	case api.Role_ROLE_OPERATOR:
		return pki.RoleOperator
	case api.Role_ROLE_ADMIN:
		return pki.RoleAdmin
	case api.Role_ROLE_LOG_READER:
		return pki.RoleLogReader
	case api.Role_ROLE_IMAGE_IMPORT:
		return pki.RoleImageImport
	case api.Role_ROLE_JOIN:
		return pki.RoleJoin
	case api.Role_ROLE_ETCD_BACKUP:
		return pki.RoleEtcdBackup
	}
	return "nobody"
}

func apiMethods() []protoreflect.MethodDescriptor { return methodsOf(api.File_orlop_proto) }

func methodsOf(file protoreflect.FileDescriptor) []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			methods = append(methods, service.Methods().Get(j))
		}
	}
	return methods
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// services are the services that reflection lists: the API's services, which apid forwards, and its
// own two.
type services struct{}

// GetServiceInfo implements reflection.ServiceInfoProvider; reflection reads the names only.
func (services) GetServiceInfo() map[string]grpc.ServiceInfo {
	info := map[string]grpc.ServiceInfo{}
	for _, name := range serviceNames() {
		info[name] = grpc.ServiceInfo{}
	}
	return info
}

func serviceNames() []string {
	names := []string{healthpb.Health_ServiceDesc.ServiceName, reflectionpb.ServerReflection_ServiceDesc.ServiceName}
	list := api.File_orlop_proto.Services()
	for i := range list.Len() {
		names = append(names, string(list.Get(i).FullName()))
	}
	sort.Strings(names)
	return names
}
