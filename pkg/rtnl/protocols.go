package rtnl

// The protocols of what this system sets: of addresses (IFA_PROTO) and routes (rtm_protocol). The
// numbers are not taken in the kernel's rtnetlink.h nor in iproute2's rt_protos.
const (
	ProtoMachine  = 79 // the machine's own network
	ProtoPods     = 80 // the network between the pods of several machines
	ProtoServices = 81 // the way to Services, for programs of the machine
)
