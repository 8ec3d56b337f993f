from kofn_host.worker.group_job import ElasticCalls as ElasticCalls
from kofn_host.worker.group_job import GroupJob as GroupJob
from kofn_host.worker.job_place import JobPlace as JobPlace
from kofn_host.worker.rendezvous import RENDEZVOUS as RENDEZVOUS
from kofn_host.worker.run import agent_of as agent_of
from kofn_host.worker.run import work as work
from kofn_host.worker.thread_member import ThreadMember as ThreadMember
from kofn_host.worker.worker_place import WorkerPlace as WorkerPlace
